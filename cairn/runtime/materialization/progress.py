"""The results of materializations, in files that tasks and the materializing process share.

What is about to be tried is counted as failed first, so that one that is killed counts, too. Where
several are tried together, nobody knows which of them killed the process: each is suspect then, and
only what it does alone counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from cairn.errors import RefusedError, StorageError
from cairn.runtime.executor.task_manager import TaskManager, write_whole

Subject = int | Literal["process"]
"""What is counted: the materializations of a subtask, or the starts of the process."""

_KILLED = "it ended without saying why, as a killed process does"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The results for one subject on this executor in this run."""

    done_ms: int = 0
    """The order's time of the last successful one, even if there was nothing to write."""
    failures: int = 0
    """In a row, since then."""
    error: str = ""
    is_final: bool = False
    """Whether the last failure was one that trying again cannot mend."""
    is_suspect: bool = False
    """Whether an attempt together with others has begun, and not said how it ended."""

    @property
    def is_apart(self) -> bool:
        """Tells whether the next attempt is one alone, and without patience."""
        return self.failures > 0 or self.is_suspect


def _file(manager: TaskManager, subject: Subject) -> Path:
    return manager.directory / f"materialize-{subject}.json"


def progress_of(manager: TaskManager, subject: Subject) -> Progress:
    """Returns what is recorded; the empty progress before the first order."""
    try:
        data = _file(manager, subject).read_bytes()
    except FileNotFoundError:
        return Progress()
    return msgspec.json.decode(data, type=Progress)


def record_progress(manager: TaskManager, subject: Subject, progress: Progress) -> None:
    """Replaces the record, whole.

    Raises:
        FencedError: a newer run has removed this run's directory.
    """
    write_whole(_file(manager, subject), msgspec.json.encode(progress))


def count_as_failed(manager: TaskManager, subject: Subject, before: Progress) -> None:
    """Records one more failure, which stands unless the attempt that follows says how it ended.

    Raises:
        FencedError: a newer run has removed this run's directory.
    """
    after = replace(before, failures=before.failures + 1, error=_KILLED)
    record_progress(manager, subject, after)


def suspect(manager: TaskManager, subject: Subject, before: Progress) -> None:
    """Records an attempt together with others: unless it says how it ended, the next one is alone.

    Raises:
        FencedError: a newer run has removed this run's directory.
    """
    record_progress(manager, subject, replace(before, is_suspect=True))


def is_given_up(manager: TaskManager, progress: Progress) -> bool:
    """Tells whether the next task has to fail, instead of one more attempt."""
    most = manager.run.settings.materialize_max_failures
    return progress.is_final or progress.failures >= most


def raise_if_given_up(manager: TaskManager, subject: Subject, progress: Progress) -> None:
    """Raises what has kept a subject from success; failures are counted from the start then.

    Raises:
        StorageError: it has failed `cairn.changelog.max-failures-allowed` times in a row.
        RefusedError: it has failed in a way that trying again cannot mend; this is not forgotten.
    """
    if not is_given_up(manager, progress):
        return
    job, what = manager.run.job, f"subtask {subject} could not be materialized"
    if subject == "process":
        what = "the process that materializes ended before it took an order"
    text = f"{what} (failures in a row: {progress.failures}), so the changelog grows."
    if progress.is_final:
        raise RefusedError(f"{text} Trying again cannot help: {progress.error}", job=job)
    record_progress(manager, subject, Progress(done_ms=progress.done_ms))
    raise StorageError(f"{text} The last time: {progress.error}", job=job)
