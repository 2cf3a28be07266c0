"""Stateful streams by event time and by processing time, and what they should have done by then.

Input file f is batch f. Both processors keep which of their timers fired in state, so that a timer
that fires twice or never is seen in the state of any checkpoint. Run as a program, several streams
run at once to the end of their source, and can be killed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from sqlalchemy import select

from cairn.catalog.catalog import Catalog
from metastore.enums import CheckpointStatus
from metastore.group_commits import SubtaskAck
from metastore.models import Checkpoint, Job
from tests.streams.streams import OUTPUT, Settings, State, new_session, start

EVENTS, CLOCK, FRAMES = "events", "clock", "frames"
KEYS = 12
ROWS_PER_FILE = 30
STEP_MS = 10_000
"""Event time from file to file."""
DELAY_MS = 5_000
GAP_MS = 8_000
"""How long after a row its timer is due."""
AGAIN_MS = 3_000
TTL_MS = 1_500
WAIT_MS = 900
INITIAL = 1000
"""Count of each key in the initial state of the stream of frames."""

TimedRow = tuple[str, int, int]
"""Key, value, event time in ms."""


class Events(StatefulProcessor):
    """Counts rows; a timer after each row, and another after each second timer that fired."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")
        self._fired = handle.getListState("fired", "expiry long")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        for row in rows:
            count = (self._count.get() or (0,))[0] + 1
            self._count.update((count,))
            self._handle.registerTimer(row.at_ms + GAP_MS)
            yield Row(key=key[0], n=count)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        assert expiry <= timerValues.getCurrentWatermarkInMs()
        self._fired.appendValue((expiry,))
        if expiry % 2:
            self._handle.registerTimer(expiry + AGAIN_MS + 1)
        yield Row(key=key.key, n=expiry)

    def close(self) -> None:
        pass


class FlakyEvents(Events):
    """Fails in the second subtask of each task's first attempt."""

    _subtasks: ClassVar[dict[int, int]] = {}
    """How many subtasks each attempt in this worker has begun."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            attempt = context.taskAttemptId()
            self._subtasks[attempt] = self._subtasks.get(attempt, 0) + 1
            if self._subtasks[attempt] == 2:
                raise RuntimeError("the second subtask of the first attempt")


class Clock(StatefulProcessor):
    """Remembers a while by TTL; one timer per key and batch, by processing time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._fresh = handle.getValueState("fresh", "n long")
        self._last = handle.getValueState("last", "value long", ttlDurationMs=TTL_MS)
        self._seen = handle.getMapState("seen", "digit string", "n long", ttlDurationMs=TTL_MS)
        self._fired = handle.getListState("fired", "expiry long")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        if not self._last.exists():
            self._fresh.update(((self._fresh.get() or (0,))[0] + 1,))
        for row in rows:
            self._last.update((row.value,))
            digit = (str(row.value % 10),)
            self._seen.updateValue(digit, ((self._seen.getValue(digit) or (0,))[0] + 1,))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + WAIT_MS)
        yield Row(key=key[0], n=0)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        self._fired.appendValue((expiredTimerInfo.getExpiryTimeInMs(),))
        yield Row(key=key.key, n=1)

    def close(self) -> None:
        pass


class Frames(StatefulProcessor):
    """Counts rows in pandas frames, from what initial state gave."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[Any]:
        count = (self._count.get() or (0,))[0] + sum(len(frame) for frame in rows)
        self._count.update((count,))
        yield from frame_of(key[0], count)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        self._count.update((int(initialState["n"].sum()),))

    def close(self) -> None:
        pass


def frame_of(key: str, n: int) -> Iterator[Any]:
    """Yields one output row as a frame."""
    import pandas as pd

    yield pd.DataFrame({"key": [key], "n": [n]})


def rows_of(file: int) -> list[TimedRow]:
    """Returns the rows of an input file; from the fourth on, some are late."""
    chance = random.Random(file)
    return [
        (
            f"key-{chance.randrange(KEYS)}",
            chance.randrange(1000),
            (file + 4) * STEP_MS + chance.randrange(-3 * STEP_MS, STEP_MS),
        )
        for _ in range(ROWS_PER_FILE)
    ]


def write_source(directory: Path, files: int) -> str:
    """Writes input files 0 to `files` - 1, in the order that Spark will read them."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        lines = [
            json.dumps({"key": key, "value": value, "at_ms": at_ms})
            for key, value, at_ms in rows_of(file)
        ]
        path = directory / f"{file:05}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))
    return str(directory)


def stream_of(
    session: SparkSession, settings: Settings, processor: StatefulProcessor | None = None
) -> DataFrame:
    """Returns the stateful stream that the settings' job name means."""
    reader = session.readStream.schema("key string, value long, at_ms long")
    rows = reader.option("maxFilesPerTrigger", 1).json(settings.source)
    rows = rows.withColumn("at", F.timestamp_millis("at_ms"))
    watermarked = rows.withWatermark("at", f"{DELAY_MS} milliseconds")
    grouped = settings.cairn_job().groupBy(watermarked, "key")
    if settings.job == EVENTS:
        return grouped.transformWithState(processor or Events(), OUTPUT, "Update", "EventTime")
    if settings.job == CLOCK:
        return grouped.transformWithState(processor or Clock(), OUTPUT, "Update", "ProcessingTime")
    initial = session.createDataFrame(
        [(f"key-{k}", INITIAL) for k in range(KEYS)], "k string, n int"
    )
    return grouped.transformWithStateInPandas(
        Frames(), OUTPUT, "Update", "None", initialState=initial.groupBy("k")
    )


def each_of(settings: Settings) -> list[Settings]:
    """Returns the settings of each stream, where the job's name is several of them."""
    return [
        replace(settings, job=job, spark_checkpoint=f"{settings.spark_checkpoint}-{job}")
        for job in settings.job.split()
    ]


def times_of_batches(url: str, job: str) -> dict[int, tuple[int, int]]:
    """Returns processing time and watermark by batch, of the checkpoints that count."""
    with Catalog(url).begin() as connection:
        found = connection.execute(
            select(Checkpoint.batch_id, Checkpoint.processing_ms, Checkpoint.watermark_ms)
            .join(Job, Job.job_id == Checkpoint.job_id)
            .where(Job.name == job, Checkpoint.status != CheckpointStatus.ABORTED)
        ).all()
    assert len({row.batch_id for row in found}) == len(found)
    return {row.batch_id: (row.processing_ms, row.watermark_ms) for row in found}


def late_rows(url: str, job: str) -> dict[int, int]:
    """Returns how many rows were late by batch, of the checkpoints that count."""
    late: dict[int, int] = {}
    with Catalog(url).begin() as connection:
        for batch, count in connection.execute(
            select(Checkpoint.batch_id, SubtaskAck.late_rows)
            .join(Job, Job.job_id == Checkpoint.job_id)
            .join(
                SubtaskAck,
                (SubtaskAck.job_id == Checkpoint.job_id)
                & (SubtaskAck.checkpoint_id == Checkpoint.checkpoint_id),
            )
            .where(Job.name == job, Checkpoint.status != CheckpointStatus.ABORTED)
        ):
            late[batch] = late.get(batch, 0) + count
    return late


class Expected:
    """What the streams should have done after some files.

    Attributes:
        state: the state of the stream, as `tests.streams.streams.read_state` reads it.
        late: how many rows were late by batch.
        watermarks: the watermark of each batch.
    """

    def __init__(self) -> None:
        self.state: State = {}
        self.late: dict[int, int] = {}
        self.watermarks: dict[int, int] = {}
        self._fired: dict[str, int] = {}
        self._timers: set[tuple[int, str]] = set()

    def _count(self, name: str, key: str) -> None:
        self.state[name, key, ""] = self.state.get((name, key, ""), 0) + 1

    def _fire(self, until_ms: int, *, again: bool) -> None:
        due = sorted(timer for timer in self._timers if timer[0] <= until_ms)
        for expiry, key in due:
            place = self._fired.get(key, 0)
            self._fired[key] = place + 1
            self.state["fired", key, str(place)] = expiry
            if again and expiry % 2:
                self._timers.add((expiry + AGAIN_MS + 1, key))
            self._timers.discard((expiry, key))

    def _done(self) -> Expected:
        self.state |= {("timer", key, str(expiry)): True for expiry, key in self._timers}
        return self

    @classmethod
    def of_events(cls, files: int) -> Expected:
        """Returns what `Events` should have done."""
        made, latest_ms, late_ms, watermark_ms = cls(), DELAY_MS, 0, 0
        for file in range(files):
            made.watermarks[file] = watermark_ms = max(watermark_ms, latest_ms - DELAY_MS)
            rows = rows_of(file)
            on_time = [row for row in rows if row[2] > late_ms]
            made.late[file] = len(rows) - len(on_time)
            for key, _, at_ms in on_time:
                made._count("count", key)
                made._timers.add((at_ms + GAP_MS, key))
            made._fire(watermark_ms, again=True)
            latest_ms = max(latest_ms, *(at_ms for _, _, at_ms in rows))
            late_ms = watermark_ms
        return made._done()

    @classmethod
    def of_frames(cls, files: int) -> Expected:
        """Returns what `Frames` should have done."""
        made = cls()
        made.state = {("count", f"key-{key}", ""): INITIAL for key in range(KEYS)}
        for file in range(files):
            for key, _, _ in rows_of(file):
                made._count("count", key)
        return made

    @classmethod
    def of_clock(cls, processing_ms: Mapping[int, int]) -> Expected:
        """Returns what `Clock` should have done in batches of certain processing times."""
        made = cls()
        expiries: dict[tuple[str, str, str], int] = {}
        for file, now_ms in sorted(processing_ms.items()):
            live = {entry for entry, expiry in expiries.items() if expiry > now_ms}
            rows = rows_of(file)
            for key in {key for key, _, _ in rows}:
                if ("last", key, "") not in live:
                    made._count("fresh", key)
                made._timers.add((now_ms + WAIT_MS, key))
            for key, value, _ in rows:
                seen = ("seen", key, str(value % 10))
                made.state[seen] = made.state[seen] + 1 if seen in live else 1
                made.state["last", key, ""] = value
                expiries[seen] = expiries["last", key, ""] = now_ms + TTL_MS
                live |= {seen, ("last", key, "")}
            made._fire(now_ms, again=False)
            for entry in [entry for entry, expiry in expiries.items() if expiry <= now_ms]:
                del expiries[entry], made.state[entry]
        return made._done()


def main(text: str) -> None:
    """Runs the streams that the job's name lists to the end of their source."""
    settings = msgspec.json.decode(text, type=Settings)
    session = new_session(settings.master)
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    queries = [start(stream_of(session, one), one) for one in each_of(settings)]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
