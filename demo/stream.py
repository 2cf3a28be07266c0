"""Starting, watching and killing the demo's streaming process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from cairn.errors import CairnError
from metastore.engine import open_engine
from metastore.models import Checkpoint, CheckpointStatus, Job, SubtaskAck

DONE = (CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED, CheckpointStatus.SUBSUMED)


class StreamFailedError(CairnError):
    """The streaming process ended by itself, and not well."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the stream is: batches whose checkpoint is whole, and whether one is under way."""

    batches: int
    in_batch: bool


class Stream:
    """The word count in a process group of its own, its output in a log file."""

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
            StreamFailedError: it ended with an error; the message ends with its log's last lines.
        """
        code = self._process.poll()
        if code:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-25:])
            raise StreamFailedError(
                f"the stream ended with exit code {code}. Its log ends:\n{tail}",
                file=str(self._log),
            )
        return code is None

    def kill(self) -> None:
        """Sends SIGKILL to the whole process group: driver, JVM and Python workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ends it, gently first."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


def progress(url: str, job: str) -> Progress:
    """Returns how far the job's stream is, by the metastore."""
    with open_engine(url).connect() as connection:
        rows = connection.execute(
            select(Checkpoint.status, func.count(Checkpoint.batch_id.distinct()))
            .join(Job, Job.job_id == Checkpoint.job_id)
            .where(Job.name == job)
            .group_by(Checkpoint.status)
        ).all()
    counts: dict[CheckpointStatus, int] = {row[0]: row[1] for row in rows}
    return Progress(
        sum(counts.get(status, 0) for status in DONE),
        CheckpointStatus.IN_PROGRESS in counts,
    )


def wait_for_middle_of_batch(url: str, job: str) -> int:
    """Returns the id of a checkpoint that some, not all, of its subtasks have acknowledged."""
    newest = (
        select(Checkpoint.checkpoint_id, func.count(SubtaskAck.subtask), Checkpoint.parallelism)
        .join(Job, Job.job_id == Checkpoint.job_id)
        .outerjoin(
            SubtaskAck,
            (SubtaskAck.job_id == Checkpoint.job_id)
            & (SubtaskAck.checkpoint_id == Checkpoint.checkpoint_id),
        )
        .where(Job.name == job, Checkpoint.status == CheckpointStatus.IN_PROGRESS)
        .group_by(Checkpoint.checkpoint_id, Checkpoint.parallelism)
    )
    while True:
        with open_engine(url).connect() as connection:
            for checkpoint_id, acked, parallelism in connection.execute(newest):
                if 0 < acked < parallelism:
                    return int(checkpoint_id)
        time.sleep(0.01)
