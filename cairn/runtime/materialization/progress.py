"""The results of a subtask's materializations, in a file that tasks and their processes share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from cairn.runtime.executor.task_manager import TaskManager, write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The results of the materializations of a subtask on this executor in this run."""

    done_ms: int = 0
    """The order's time of the last successful one, even if there was nothing to write."""
    failures: int = 0
    """In a row, since then."""
    error: str = ""
    is_final: bool = False
    """Whether the last failure was one that trying again cannot mend."""


def _file(manager: TaskManager, subtask: int) -> Path:
    return manager.directory / f"materialize-{subtask}.json"


def progress_of(manager: TaskManager, subtask: int) -> Progress:
    """Returns what is recorded of a subtask; the empty progress before the first order."""
    try:
        data = _file(manager, subtask).read_bytes()
    except FileNotFoundError:
        return Progress()
    return msgspec.json.decode(data, type=Progress)


def record_progress(manager: TaskManager, subtask: int, progress: Progress) -> None:
    """Replaces the record, whole.

    Raises:
        FencedError: a newer run has removed this run's directory.
    """
    write_whole(_file(manager, subtask), msgspec.json.encode(progress))
