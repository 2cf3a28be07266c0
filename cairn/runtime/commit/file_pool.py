"""The files that one executor has open for writing at a time (FLIP-306 4.6).

A slot is a locked file in the executor's directory, so it is free again when its holder dies. With
`cairn.file-merging.across-checkpoint-boundary` a file at rest, which a later checkpoint may
continue, has a record beside its slot. A commit that continues it removes the record first and
writes a new one after the ack, so that after any failure in between nobody continues it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cairn.locks import Wait, try_lock
from cairn.runtime.commit.file_merging import AppendableFile
from cairn.runtime.executor.private_files import FILE_MODE
from cairn.runtime.executor.task_manager import TaskManager, fenced_if_removed, write_whole


@dataclass(slots=True)
class Slot:
    """A place for one file at rest, which only its holder reads and changes."""

    record: Path
    file: AppendableFile | None

    def give_up(self) -> AppendableFile | None:
        """Keeps everybody from continuing the file at rest; returns it."""
        file, self.file = self.file, None
        self.record.unlink(missing_ok=True)
        return file

    def keep(self, file: AppendableFile) -> None:
        """Leaves a file, acknowledged up to its size, to be continued."""
        write_whole(self.record, msgspec.msgpack.encode(file))
        self.file = file


class FilePool:
    """One task's share of the pool: the slots it has taken, until `held` closes.

    `waited_ms` is how long it has waited for its first one.
    """

    def __init__(self, manager: TaskManager, held: ExitStack) -> None:
        settings = manager.run.settings
        self._directory = manager.directory / "pool"
        self._size = settings.max_file_pool_size
        self._blocks = settings.pool_blocking
        self._keeps = settings.merges_files_across
        self._held = held
        self._slots: dict[int, Slot] = {}
        self.waited_ms = 0

    def take(self, wanted: int) -> None:
        """Takes free slots, up to `wanted` in all; a blocking pool waits for its first one.

        It waits while it has none, so that two tasks never wait for each other.

        Raises:
            FencedError: a newer run has removed this run's directory.
            StorageError: no slot was free for `locks.DEADLINE_S`.
        """
        self._take_free(wanted)
        if self._slots or not self._blocks:
            return
        free = Wait(
            "a free slot of the file pool (cairn.file-merging.pool-blocking)", self._directory
        )
        # Polled, as flock cannot wait for whichever of several locks is free first.
        while not self._slots:
            free.pause()
            self._take_free(wanted)
        self.waited_ms += round(free.waited_s * 1000)

    @property
    def writers(self) -> int:
        """How many files the task may write at once.

        In a blocking pool only those it has slots for. Else as many as the pool has: for those
        that others are using it opens files of its own.
        """
        return len(self._slots) if self._blocks else self._size

    def appendable_files(self) -> list[AppendableFile]:
        """Returns the files at rest in the slots taken."""
        return [slot.file for slot in self._slots.values() if slot.file is not None]

    def give_up(self, file: AppendableFile) -> None:
        """Keeps everybody from continuing a file."""
        for slot in self._slots.values():
            if slot.file == file:
                slot.give_up()

    def keep(self, files: Sequence[AppendableFile]) -> None:
        """Leaves files, acknowledged up to their size, to be continued where a slot is free."""
        if not self._keeps:
            return
        free = [slot for slot in self._slots.values() if slot.file is None]
        for slot, file in zip(free, files, strict=False):
            slot.keep(file)

    def _take_free(self, wanted: int) -> None:
        for number in range(self._size):
            if len(self._slots) >= wanted:
                return
            lock = self._directory / f"{number}.lock"
            with fenced_if_removed(lock):
                lock.touch(FILE_MODE)
                is_free = number not in self._slots and try_lock(lock, self._held) is not None
            if is_free:
                self._slots[number] = _open_slot(self._directory / f"{number}.open", self._keeps)


def shared_slot(manager: TaskManager, subtask: int, held: ExitStack) -> Slot | None:
    """Returns the place for a subtask's own file, until `held` closes.

    None if files are not continued, or another process writes for the subtask.

    Raises:
        FencedError: a newer run has removed this run's directory.
    """
    directory = manager.directory / "pool"
    lock = directory / f"shared-{subtask}.lock"
    if not manager.run.settings.merges_files_across:
        return None
    with fenced_if_removed(lock):
        lock.touch(FILE_MODE)
        # Not waited for: a new file costs less than a materialization that stands in line.
        if try_lock(lock, held) is None:
            return None
    return _open_slot(directory / f"shared-{subtask}.open", keeps=True)


def _open_slot(record: Path, keeps: bool) -> Slot:
    if not keeps or not record.exists():
        return Slot(record, None)
    return Slot(record, msgspec.msgpack.decode(record.read_bytes(), type=AppendableFile))
