"""One subtask in one batch on one executor, with the storage that its files are in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cairn.batch_ref import BatchRef
from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.settings import Settings
from cairn.storage.store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskContext:
    """What restoring, materializing and logging the changes of a subtask need to know of it.

    `materialization_id` names the recorded materialization that it is in, if it is in one.
    """

    manager: TaskManager
    store: ObjectStore
    batch: BatchRef
    subtask: int
    materialization_id: str | None = None

    @property
    def run(self) -> RunContext:
        """The run that the batch is of."""
        return self.manager.run

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        return self.run.settings

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the subtask owns."""
        return self.run.key_groups(self.subtask)

    @property
    def directory(self) -> Path:
        """Where the subtask keeps its local state on this host."""
        return self.manager.subtask_directory(self.subtask)
