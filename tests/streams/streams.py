"""A small stateful stream for the runtime tests; run as a program, it can be killed.

Input file f holds `ROWS_PER_FILE` rows; every batch reads one file. The processor keeps a count, a
list and a map per key, so the right state after any number of files is a plain computation.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from sqlalchemy import select

import cairn
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.segments import segments_at
from cairn.keygroups import range_of
from cairn.locks import is_free
from cairn.segments.snapshot import snapshot
from cairn.state.codec import TupleCodec
from cairn.state.entries import (
    TIME_BYTES,
    TIMERS,
    TIMERS_BY_EXPIRY,
    TTL_BY_EXPIRY,
    decode_time,
    split,
)
from cairn.state.ttl import HEADER_BYTES
from cairn.storage import open_store
from metastore.enums import CheckpointStatus
from metastore.models import Checkpoint, Job, StateVariable
from spark_jobs import environment
from tests.file_retention import DELETE_AT_ONCE

ROOT = Path(__file__).resolve().parents[2]
ROWS_PER_FILE = 60
KEYS = 25
OUTPUT = "key string, n long"

State = dict[tuple[str, str, str], Any]
"""Value by state variable, key, and user key or index in the list ('' for value state).

A timer is an entry of the variable 'timer' under its expiry.
"""


class Remember(StatefulProcessor):
    """Keeps, by key: how many rows, which values in order, and how many by last digit."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")
        self._values = handle.getListState("values", "value long")
        self._digits = handle.getMapState("digits", "digit string", "n long")

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        values = [row["value"] for row in rows]
        known = self._count.get()
        count = (known[0] if known else 0) + len(values)
        self._count.update((count,))
        for value in values:
            if value % 11 == 0:
                self._values.clear()
            self._values.appendValue((value,))
            digit = (str(value % 10),)
            if value % 13 == 0:
                self._digits.removeKey(digit)
            else:
                seen = self._digits.getValue(digit)
                self._digits.updateValue(digit, ((seen[0] if seen else 0) + 1,))
        yield Row(key=key[0], n=count)

    def close(self) -> None:
        pass


class WrongType(Remember):
    """Stores text where a long was declared."""

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        self._count.update(("many",))
        yield Row(key=key[0], n=1)


class FailsWhile(Remember):
    """Fails while a file is there."""

    def __init__(self, flag: Path) -> None:
        self._flag = flag

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        if self._flag.exists():
            raise OSError("the sink is away")
        yield from super().handleInputRows(key, rows, timerValues)


def rows_of(file: int) -> list[tuple[str, int]]:
    """Returns the rows of an input file."""
    chance = random.Random(file)
    return [
        (f"key-{chance.randrange(KEYS)}", chance.randrange(100_000)) for _ in range(ROWS_PER_FILE)
    ]


def write_source(directory: Path, files: int) -> Path:
    """Writes input files 0 to `files` - 1, in the order that Spark will read them."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        lines = [json.dumps({"key": key, "value": value}) for key, value in rows_of(file)]
        path = directory / f"{file:05}.json"
        path.write_text("\n".join(lines))
        _set_time(path, 1_700_000_000 + file)
    return directory


def _set_time(path: Path, moment_s: int) -> None:
    os.utime(path, (moment_s, moment_s))


def expected_state(files: int) -> State:
    """Returns the right state after the first files."""
    counts: dict[str, int] = {}
    values: dict[str, list[int]] = {}
    digits: dict[str, dict[str, int]] = {}
    for file in range(files):
        by_key: dict[str, list[int]] = {}
        for key, value in rows_of(file):
            by_key.setdefault(key, []).append(value)
        for key, batch in by_key.items():
            counts[key] = counts.get(key, 0) + len(batch)
            for value in batch:
                if value % 11 == 0:
                    values[key] = []
                values.setdefault(key, []).append(value)
                seen = digits.setdefault(key, {})
                digit = str(value % 10)
                if value % 13 == 0:
                    seen.pop(digit, None)
                else:
                    seen[digit] = seen.get(digit, 0) + 1
    state: State = {("count", key, ""): n for key, n in counts.items()}
    for key, listed in values.items():
        state |= {("values", key, str(i)): value for i, value in enumerate(listed)}
    for key, seen in digits.items():
        state |= {("digits", key, digit): n for digit, n in seen.items()}
    return state


@dataclass(frozen=True)
class Settings:
    """Everything one start of the stream needs; survives as JSON."""

    source: str
    storage: str
    metastore: str
    spark_checkpoint: str
    local_dir: str
    job: str = "small"
    master: str = "local[2,4]"
    parallelism: int = 3
    options: Mapping[str, str] = field(default_factory=dict)
    restore_from: str | None = None

    def cairn_job(self) -> cairn.Job:
        """Returns the job."""
        options = {"cairn.local-dir": self.local_dir, **DELETE_AT_ONCE, **self.options}
        return cairn.Job(
            self.job,
            storage=self.storage,
            metastore=self.metastore,
            parallelism=self.parallelism,
            options=options,
            restore_from=self.restore_from,
        )


def rows(session: SparkSession, settings: Settings) -> DataFrame:
    """Returns the input stream, one file a batch."""
    reader = session.readStream.schema("key string, value long").option("maxFilesPerTrigger", 1)
    return reader.json(settings.source)


def remembered(
    session: SparkSession, settings: Settings, processor: StatefulProcessor | None = None
) -> DataFrame:
    """Returns the stateful stream."""
    grouped = settings.cairn_job().groupBy(rows(session, settings), "key")
    return grouped.transformWithState(processor or Remember(), OUTPUT, "Update", "None")


def start(
    df: DataFrame,
    settings: Settings,
    each: Callable[[DataFrame, int], None] | None = None,
) -> StreamingQuery:
    """Starts a query that ends once the source is read."""
    writer = df.writeStream.outputMode("update")
    writer = writer.foreachBatch(each) if each else writer.format("noop")
    writer = writer.option("checkpointLocation", settings.spark_checkpoint)
    return writer.trigger(availableNow=True).start()


def new_session(master: str) -> SparkSession:
    """Returns a quiet session with this interpreter in its workers.

    `connect:` before the master starts it through Spark Connect.
    """
    environment.prepare()
    os.environ["PYTHONPATH"] = str(ROOT)  # workers import this module by name
    # These processes live for seconds: optimising compilers and parallel collectors only cost.
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    if master.startswith("connect:"):
        return SparkSession.builder.remote(master.removeprefix("connect:")).getOrCreate()
    return (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.executor.memory", "512m")
        .config("spark.shuffle.reduceLocality.enabled", "false")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1")
        .getOrCreate()
    )


def read_state(url: str, job: str, checkpoint_id: int) -> State:
    """Returns the state of one checkpoint, read from its segments alone."""
    with Catalog(url).begin() as connection:
        row = connection.execute(select(Job.__table__).where(Job.name == job)).one()
        names = {
            variable.state_id: variable
            for variable in connection.execute(
                select(StateVariable.__table__).where(StateVariable.job_id == row.job_id)
            )
        }
        key_groups = range_of(0, 1, row.max_parallelism)
        handles = segments_at(connection, row.job_id, checkpoint_id, key_groups)
    keys = TupleCodec(row.key_schema, name="key")
    state: State = {}
    lists: dict[tuple[str, str], list[tuple[bytes, Any]]] = {}
    due: set[tuple[str, str, str]] = set()
    entries = snapshot(open_store(row.storage), handles, key_groups, job=job)
    for entry_key, data in entries.items():
        parts = split(entry_key)
        if parts.state_id == TTL_BY_EXPIRY:
            continue
        if parts.state_id == TIMERS_BY_EXPIRY:
            key = keys.decode(parts.suffix[TIME_BYTES:])[0]
            due.add(("timer", key, str(decode_time(parts.suffix))))
            continue
        key = keys.decode(parts.key)[0]
        if parts.state_id == TIMERS:
            state["timer", key, str(decode_time(parts.suffix))] = True
            continue
        variable = names[parts.state_id]
        stored = data[HEADER_BYTES:] if variable.has_ttl else data
        values = TupleCodec(variable.value_schema, name=variable.name).decode(stored)
        value = values[0] if len(values) == 1 else values
        if variable.kind.value == "list":
            lists.setdefault((variable.name, key), []).append((parts.suffix, value))
            continue
        user_key = ""
        if variable.kind.value == "map":
            user_key = TupleCodec(variable.user_key_schema, name="").decode(parts.suffix)[0]
        state[variable.name, key, user_key] = value
    assert due == {entry for entry in state if entry[0] == "timer"}
    for (name, key), listed in lists.items():
        ordered = sorted(listed, key=lambda element: element[0])
        state |= {(name, key, str(i)): value for i, (_, value) in enumerate(ordered)}
    return state


def retained(url: str, job: str) -> dict[int, int]:
    """Returns the batch by id of every checkpoint that can be restored."""
    with Catalog(url).begin() as connection:
        found = connection.execute(
            select(Checkpoint.checkpoint_id, Checkpoint.batch_id)
            .join(Job, Job.job_id == Checkpoint.job_id)
            .where(
                Job.name == job,
                Checkpoint.status.in_([CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED]),
            )
        )
        return {row.checkpoint_id: row.batch_id for row in found}


def newest_state(url: str, job: str = "small") -> State:
    """Returns the state of the newest checkpoint that can be restored."""
    return read_state(url, job, max(retained(url, job)))


def await_materialization(settings: Settings) -> None:
    """Returns when all orders that a process is there for are done.

    They wait for an idle core, which tests beside this one may not leave: now they need not.
    """
    for lock in Path(settings.local_dir).glob("*/tm/*/materializing.lock"):
        while list(lock.parent.glob("orders/*")) and not is_free(lock):
            _hurry(lock)
            time.sleep(0.05)


def _hurry(file: Path) -> None:
    """Gives the threads of whoever has a file open the priority of any other."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it is over
            if descriptor.readlink() == file:
                for thread in (descriptor.parents[1] / "task").iterdir():
                    os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))


def main(text: str) -> None:
    """Runs the stream to the end of its source."""
    settings = msgspec.json.decode(text, type=Settings)
    session = new_session(settings.master)
    start(remembered(session, settings), settings).awaitTermination()


def dump(settings: Settings) -> str:
    """Returns the argument that makes this program run with some settings."""
    return json.dumps(asdict(settings))


if __name__ == "__main__":
    main(sys.argv[1])
