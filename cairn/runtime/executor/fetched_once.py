"""Ranges of storage that several subtasks of an executor need: the first one keeps them for others.

At another parallelism, a small segment and the index of a large one are needed by each subtask that
has some of their key groups. They are kept as files of the executor until its next batch begins.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cairn.errors import StorageError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor.private_files import DIRECTORY_MODE, disk_errors
from cairn.runtime.executor.task_manager import FETCHED, TaskManager, fenced_if_removed, write_whole
from cairn.storage.store import Readable

_LOCKS = 16
_DIGEST_BYTES = 32
_log = logging.getLogger(__name__)

Range = tuple[str, int, int]
"""Path, offset and size."""


def shared_ranges(handles: Iterable[SegmentHandle], key_groups: KeyGroupRange) -> set[Range]:
    """Returns what a restore of some key groups reads that subtasks with others read, too."""
    ranges: set[Range] = set()
    for handle in handles:
        if handle.key_groups.intersect(key_groups) == handle.key_groups:
            continue
        size_bytes = handle.index.size_bytes if handle.index else handle.size_bytes
        end = handle.offset + handle.size_bytes
        ranges.add((handle.path, end - size_bytes, size_bytes))
    return ranges


class FetchedOnce:
    """Reads a store; of the ranges given, each executor asks it once.

    Raises, its `get`:
        FencedError: a newer run has removed this run's directory.
        StorageError: the store failed.
    """

    def __init__(self, store: Readable, manager: TaskManager, ranges: set[Range]) -> None:
        self._store, self._manager, self._ranges = store, manager, ranges
        self._directory = manager.directory / FETCHED

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        """Returns the bytes of a range, as the store does."""
        if size_bytes is None or (path, offset, size_bytes) not in self._ranges:
            return self._store.get(path, offset, size_bytes)
        name = hashlib.sha256(f"{path} {offset} {size_bytes}".encode()).hexdigest()
        file = self._directory / name
        # Those who need it, too, wait for it: they would ask for the same.
        with self._manager.lock(f"{FETCHED}-{int(name, 16) % _LOCKS}"):
            data = _kept(file)
            if data is None:
                data = self._store.get(path, offset, size_bytes)
                self._keep(file, data)
        return data

    def _keep(self, file: Path, data: bytes) -> None:
        try:
            # Not the directories above it: a newer run removes those.
            with fenced_if_removed(self._directory), suppress(FileExistsError):
                os.mkdir(self._directory, DIRECTORY_MODE)
            write_whole(file, hashlib.sha256(data).digest() + data)
        except StorageError as error:
            # The others ask the store themselves.
            facts = {"job": self._manager.run.job, "error": str(error)}
            _log.warning("what was fetched is not kept for others", extra=facts)


def _kept(file: Path) -> bytes | None:
    """Returns the bytes in a file; None if there is none, or it is damaged."""
    try:
        with disk_errors("what was fetched cannot be read", file):
            found = file.read_bytes()
    except FileNotFoundError:
        return None
    data = found[_DIGEST_BYTES:]
    return data if hashlib.sha256(data).digest() == found[:_DIGEST_BYTES] else None
