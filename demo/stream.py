"""Starting, watching and killing the demo's streaming process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Select, and_, func, select

from cairn.catalog.catalog import Catalog
from cairn.errors import CairnError
from demo.processes import end, kill
from metastore.enums import CheckpointStatus, SegmentKind
from metastore.group_commits import Segment, SubtaskAck
from metastore.models import Checkpoint, Job

T = TypeVar("T")

DONE = (CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED, CheckpointStatus.SUBSUMED)
_POLL_S = 0.1
_PLAN = "=== Streaming Query ==="
_LAST_LINES = 40


class StreamFailedError(CairnError):
    """The streaming process ended by itself, or did not do in time what was waited for."""


class Stream:
    """The word count in a session of its own, its output in a log file."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "spark_jobs.wordcount", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def running(self) -> bool:
        """Tells whether it still runs.

        Raises:
            StreamFailedError: it ended with an error; the message ends with the last lines of its
                log before the query's plan, without what is Java's.
        """
        code = self._process.poll()
        if code:
            raise self._failed(f"the stream ended with exit code {code}")
        return code is None

    def wait_for(self, what: str, find: Callable[[], T | None], *, timeout_s: float) -> T:
        """Returns what `find` returns once that is not None.

        Raises:
            StreamFailedError: the stream ended first, or time is up.
        """
        deadline = time.monotonic() + timeout_s
        while self.running():
            if (found := find()) is not None:
                return found
            if time.monotonic() > deadline:
                raise self._failed(f"the stream runs, but in {timeout_s:g} s there was no {what}")
            time.sleep(_POLL_S)
        raise self._failed(f"the stream ended, and there was no {what}")

    def kill(self) -> None:
        """Sends SIGKILL to the driver, the JVM, the Python workers and what they have started."""
        kill([self._process])

    def stop(self) -> None:
        """Ends it, gently first."""
        end([self._process], patience_s=20)

    def _failed(self, what: str) -> StreamFailedError:
        # The plan comes after the error and is longer than a terminal.
        error = self._log.read_text(errors="replace").partition(_PLAN)[0].splitlines()
        told = [line for line in error if not line.lstrip().startswith("at ")]
        tail = "\n".join(told[-_LAST_LINES:])
        return StreamFailedError(f"{what}. Its log ends:\n{tail}", file=str(self._log))


def batches_done(catalog: Catalog, job: str) -> int:
    """Returns how many of the job's batches have a whole checkpoint, by the metastore."""
    return (
        _number(
            catalog,
            select(func.count(Checkpoint.batch_id.distinct()))
            .join(Job, Job.job_id == Checkpoint.job_id)
            .where(Job.name == job, Checkpoint.status.in_(DONE)),
        )
        or 0
    )


def rows_read(catalog: Catalog, job: str) -> int:
    """Returns how many input rows are part of the job's whole checkpoints."""
    return (
        _number(
            catalog,
            select(func.sum(SubtaskAck.input_rows))
            .join(
                Checkpoint,
                and_(
                    Checkpoint.job_id == SubtaskAck.job_id,
                    Checkpoint.checkpoint_id == SubtaskAck.checkpoint_id,
                ),
            )
            .join(Job, Job.job_id == Checkpoint.job_id)
            .where(Job.name == job, Checkpoint.status.in_(DONE)),
        )
        or 0
    )


def begun_checkpoint(catalog: Catalog, job: str) -> int | None:
    """Returns the id of a checkpoint that has begun and is not whole; None if there is none."""
    return _number(
        catalog,
        select(func.max(Checkpoint.checkpoint_id))
        .join(Job, Job.job_id == Checkpoint.job_id)
        .where(Job.name == job, Checkpoint.status == CheckpointStatus.IN_PROGRESS),
    )


def compacted_subtasks(catalog: Catalog, job: str, *, since: int) -> int:
    """Returns of how many subtasks the cleanup can delete the changelog up to checkpoint `since`.

    These have a base or an increment in its place that a later run has installed, in every
    checkpoint that the cleanup will keep.
    """
    kept = (
        select(Checkpoint.checkpoint_id)
        .where(Checkpoint.job_id == Job.job_id, Checkpoint.status == CheckpointStatus.CONFIRMED)
        .order_by(Checkpoint.checkpoint_id.desc())
        .offset(Job.num_retained - 1)
        .limit(1)
        .scalar_subquery()
    )
    return (
        _number(
            catalog,
            select(func.count(Segment.subtask.distinct()))
            .join(Job, Job.job_id == Segment.job_id)
            .where(
                Job.name == job,
                Segment.kind.in_([SegmentKind.KEYED_FULL, SegmentKind.KEYED_INCREMENT]),
                Segment.first_checkpoint > since + 1,
                Segment.first_checkpoint <= kept,
            ),
        )
        or 0
    )


def _number(catalog: Catalog, query: Select[int]) -> int | None:
    with catalog.begin() as connection:
        number = connection.execute(query).scalar_one()
    return None if number is None else int(number)
