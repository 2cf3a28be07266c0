"""The run that a task belongs to, as the driver describes it to every task.

Without Spark, so that a process that only materializes starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass

from cairn.batch_ref import BatchRef, RunRef
from cairn.catalog.catalog import Catalog
from cairn.handles import DirectoryHandle
from cairn.keygroups import KeyGroupRange, range_of
from cairn.layout import shared_directory
from cairn.settings import Settings
from metastore.enums import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialRows:
    """An object in storage that holds initial state rows of one subtask."""

    subtask: int
    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run of one job, fixed when the query's plan is built."""

    job: str
    job_id: str
    run_id: str
    epoch: int
    parallelism: int
    max_parallelism: int
    """How many key groups the job has."""
    storage: str
    catalog: Catalog
    settings: Settings
    tasks: int
    """Spark tasks that share the subtasks of a batch, at most `parallelism`."""
    initial_rows: tuple[InitialRows, ...] = ()
    split_lists: tuple[int, ...] = ()
    union_lists: tuple[int, ...] = ()
    """The state ids of the job's operator lists, by how they are redistributed."""

    @property
    def has_lists(self) -> bool:
        """Whether the job has any operator list."""
        return bool(self.split_lists or self.union_lists)

    def key_groups(self, subtask: int) -> KeyGroupRange:
        """Returns the key groups that a subtask of this run owns."""
        return range_of(subtask, self.parallelism, self.max_parallelism)

    def subtasks(self, task: int) -> range:
        """Returns the subtasks that a Spark task does, one after the other."""
        share = range_of(task, self.tasks, self.parallelism)
        return range(share.start, share.end)

    def shared_directory(self, subtask: int) -> DirectoryHandle:
        """Returns the directory in storage that a subtask of this run owns."""
        path = shared_directory(self.job_id, subtask, self.parallelism)
        return DirectoryHandle(
            path=path, scope=Scope.SHARED, subtask=subtask, parallelism=self.parallelism
        )

    @property
    def ref(self) -> RunRef:
        """The reference to the run that its transactions take."""
        return RunRef(job=self.job, job_id=self.job_id, epoch=self.epoch, run_id=self.run_id)

    def batch(self, query_id: str, batch_id: int) -> BatchRef:
        """Returns the reference to one of the run's batches."""
        return BatchRef(
            job=self.job,
            job_id=self.job_id,
            epoch=self.epoch,
            run_id=self.run_id,
            query_id=query_id,
            batch_id=batch_id,
        )
