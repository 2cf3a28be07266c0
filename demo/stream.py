"""Starting, watching and killing the demo's streaming process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sqlalchemy import func, select

from cairn.catalog.engine import open_engine
from cairn.errors import CairnError
from metastore.enums import CheckpointStatus
from metastore.models import Checkpoint, Job

DONE = (CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED, CheckpointStatus.SUBSUMED)


class StreamFailedError(CairnError):
    """The streaming process ended by itself, and not well."""


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


def batches_done(url: str, job: str) -> int:
    """Returns how many of the job's batches have a whole checkpoint, by the metastore."""
    with open_engine(url).connect() as connection:
        return connection.execute(
            select(func.count(Checkpoint.batch_id.distinct()))
            .join(Job, Job.job_id == Checkpoint.job_id)
            .where(Job.name == job, Checkpoint.status.in_(DONE))
        ).scalar_one()


def wait_for_middle_of_batch(stream: Stream, url: str, job: str) -> int:
    """Returns the id of a checkpoint that has begun and that not all subtasks have acknowledged.

    Raises:
        StreamFailedError: the stream ended before one was seen.
    """
    newest = (
        select(func.max(Checkpoint.checkpoint_id))
        .join(Job, Job.job_id == Checkpoint.job_id)
        .where(Job.name == job, Checkpoint.status == CheckpointStatus.IN_PROGRESS)
    )
    while stream.running():
        with open_engine(url).connect() as connection:
            found = connection.execute(newest).scalar_one()
        if found is not None:
            return int(found)
        time.sleep(0.01)
    raise StreamFailedError(
        "the stream came to its end before it could be killed in a batch", job=job
    )
