"""The directory that all tasks of one executor share: its lock, its spool, its begun batch.

A task manager (TM) is one Spark executor in one run. Its tasks are processes that start and end, so
they share files, and a file lock guards them, which is released when its holder dies.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from cairn.batch_ref import BatchRef
from cairn.catalog.job.batch_start import BatchStart, acks_at
from cairn.catalog.job.begin import begin_batch
from cairn.errors import FencedError
from cairn.handles import DirectoryHandle
from cairn.layout import task_manager_directory
from cairn.locks import lock
from cairn.runtime.executor.left_state import remove_left_state
from cairn.runtime.executor.private_files import (
    FILE_MODE,
    disk_errors,
    disk_errors_below,
    make_private,
    require_private,
    write_private,
)
from cairn.runtime.executor.run_context import RunContext
from metastore.enums import Scope

_log = logging.getLogger(__name__)
FETCHED = "fetched"
"""What of storage an executor's subtasks keep for each other, until the next batch."""
_OF_BATCHES = ("running", "pending", "acked")


class TaskManager:
    """One executor's directory under `cairn.local-dir`.

    Args:
        run: the run whose tasks share it.
        executor_root: a path that is the executor's own, the same for all its tasks.
    """

    def __init__(self, run: RunContext, executor_root: str) -> None:
        # The run's id too: a metastore restored from a backup gives the same epochs again.
        digest = hashlib.sha256(f"{executor_root} {run.run_id}".encode()).hexdigest()[:12]
        self.run = run
        self.executor_root = executor_root
        self.tm_id = f"{run.epoch}-{digest}"
        self.job_directory = run.settings.local_directory / run.job_id
        self.directory = self.job_directory / "tm" / self.tm_id
        require_private(run.settings.local_directory, self.job_directory)
        with disk_errors("the local directory cannot be used", self.directory):
            for name in (*_OF_BATCHES, "spool", "pool", "orders"):
                make_private(self.directory / name)

    def subtask_directory(self, subtask: int) -> Path:
        """Returns where a subtask keeps its LMDB environment; it outlives runs."""
        return self.job_directory / f"subtask-{subtask}-{self.run.parallelism}"

    def spool_directory(self, subtask: int) -> Path:
        """Returns where the executor keeps a subtask's segments, see `Spool`."""
        return self.directory / "spool" / str(subtask)

    def begin(self, batch: BatchRef, subtasks: Sequence[int] | None = None) -> BatchStart:
        """Returns the batch's start: one transaction per executor, then a file.

        Its parent has the acks of these subtasks at least; None: of all.
        """
        cached = self.directory / f"begun-{batch.query_id}-{batch.batch_id}"
        # The other tasks wait for the first one: a transaction for each of them would load the
        # metastore.
        with self.lock("begin"), disk_errors_below(self.job_directory):
            if cached.exists():
                start = msgspec.msgpack.decode(cached.read_bytes(), type=BatchStart)
                lacking = _lacking(start, subtasks)
                if not lacking:
                    return start
                start = self._with_acks(start, lacking)
            else:
                start = self.run.catalog.run_each(
                    f"begin batch {batch.batch_id} of job {batch.job}",
                    lambda connection: begin_batch(
                        connection, batch, subtasks=subtasks, with_lists=self.run.has_lists
                    ),
                )
                # Before the file: whoever is killed in between begins and tidies again.
                self._tidy(start)
            write_whole(cached, msgspec.msgpack.encode(start))
        return start

    def _with_acks(self, start: BatchStart, subtasks: Sequence[int]) -> BatchStart:
        """Returns the start with more acks: another executor has committed these subtasks."""
        parent, job_id = start.parent, self.run.job_id
        if parent is None:
            return start
        found = self.run.catalog.run_each(
            f"find the parent's acks of job {self.run.job}",
            lambda connection: acks_at(connection, job_id, parent.checkpoint_id, subtasks),
        )
        return replace(start, parent=replace(parent, acks=parent.acks | found))

    @property
    def owned(self) -> DirectoryHandle:
        """The directory in storage that this task manager owns."""
        path = task_manager_directory(self.run.job_id, self.tm_id)
        return DirectoryHandle(path=path, scope=Scope.TASK_MANAGER, tm_id=self.tm_id)

    def is_claimed(self, handle: DirectoryHandle) -> bool:
        """Tells whether this run has claimed a directory from here before."""
        return self._claim_mark(handle).exists()

    def remember_claim(self, handle: DirectoryHandle) -> None:
        """Notes that this run has claimed a directory, so that it does so once."""
        with fenced_if_removed(self.directory):
            self._claim_mark(handle).touch(FILE_MODE)

    def _claim_mark(self, handle: DirectoryHandle) -> Path:
        return self.directory / f"claimed-{Path(handle.path).name}"

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Holds one of the executor's locks.

        Raises:
            FencedError: a newer run has removed this run's directory.
            StorageError: see `cairn.locks.lock`.
        """
        with ExitStack() as held:
            with fenced_if_removed(self.directory):
                held.enter_context(lock(self.directory / f"{name}.lock"))
            yield

    def _tidy(self, start: BatchStart) -> None:
        """Removes what no later batch reads: begun batches, requests, fenced runs' directories."""
        for old in self.directory.glob("begun-*"):
            old.unlink()
        shutil.rmtree(self.directory / FETCHED, ignore_errors=True)
        # The parent's stay: a late attempt at it may still look for its receipt.
        keep = {start.checkpoint_id, start.parent.checkpoint_id if start.parent else 0}
        for name in _OF_BATCHES:
            for number, old in _numbered(self.directory / name):
                if number not in keep:
                    old.unlink(missing_ok=True)
        for epoch, old in _numbered(self.directory.parent):
            if epoch < self.run.epoch:
                facts = {"job": self.run.job, "epoch": self.run.epoch, "directory": str(old)}
                _log.info("older run fenced, its local directory removed", extra=facts)
                # A task of that run may still be writing here; the next batch removes the rest.
                shutil.rmtree(old, ignore_errors=True)
        self._remove_left_state(start)

    def _remove_left_state(self, start: BatchStart) -> None:
        """Removes what other parallelisms and dropped jobs have left, once in each run."""
        is_confirmed = start.parent is not None and start.parent.run_id == self.run.run_id
        done = self.directory / "left-state-removed"
        if is_confirmed and not done.exists() and remove_left_state(self.run, self.job_directory):
            done.touch(FILE_MODE)


def _numbered(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yields what a directory has whose name begins with a number; the rest others have made.

    Such as `.nfs…` and `lost+found`.
    """
    for one in directory.iterdir():
        number = one.name.split("-")[0]
        if number.isdecimal():
            yield int(number), one


def _lacking(start: BatchStart, subtasks: Sequence[int] | None) -> list[int]:
    if start.parent is None or subtasks is None:
        return []
    return [subtask for subtask in subtasks if subtask not in start.parent.acks]


@contextmanager
def fenced_if_removed(path: Path) -> Iterator[None]:
    """Raises FencedError where a file's directory does not exist: newer runs remove older ones'.

    Raises:
        StorageError: the local disk is full, or fails.
    """
    try:
        with disk_errors("a local file cannot be used", path):
            yield
    except FileNotFoundError as error:
        raise FencedError(
            "this run's local directory is missing; a newer run removes it when it begins",
            file=str(path),
        ) from error


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that other processes see all of it or none.

    Raises:
        FencedError: a newer run has removed the directory.
        StorageError: the local disk is full, or fails.
    """
    # By process, as two may write the same file. No fsync: a machine that crashed starts a new
    # executor, whose directory is another one.
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    with fenced_if_removed(path):
        try:
            write_private(draft, data)
            draft.rename(path)
        except OSError:
            # What did not fit must not keep what does from it.
            draft.unlink(missing_ok=True)
            raise
