"""Ranges of storage that several subtasks of an executor need: the first one keeps them for others.

At another parallelism, a small segment and the index of a large one are needed by each subtask that
has some of their key groups. They are kept as files of the executor until its next batch begins,
if they are what was recorded: else one bad answer of the store would be one to each retry, too.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from cairn.errors import StorageError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor.private_files import DIRECTORY_MODE, disk_errors
from cairn.runtime.executor.task_manager import FETCHED, TaskManager, fenced_if_removed, write_whole
from cairn.storage.store import Readable

_LOCKS = 16
_log = logging.getLogger(__name__)

Range = tuple[str, int, int]
"""Path, offset and size."""


def shared_ranges(handles: Iterable[SegmentHandle], key_groups: KeyGroupRange) -> dict[Range, str]:
    """Returns what a restore of some key groups reads that subtasks with others read, too.

    Each range has the SHA-256 of its bytes, in hex.
    """
    ranges: dict[Range, str] = {}
    for handle in handles:
        if handle.key_groups.intersect(key_groups) == handle.key_groups:
            continue
        part = handle.index or handle
        end = handle.offset + handle.size_bytes
        ranges[handle.path, end - part.size_bytes, part.size_bytes] = part.sha256
    return ranges


class FetchedOnce:
    """Reads a store; of the ranges given, with their SHA-256, each executor asks it once.

    Bytes with another SHA-256 are returned as they are, for the caller to find out, and not kept.

    Raises, its `get`:
        FencedError: a newer run has removed this run's directory.
        StorageError: the store failed.
    """

    def __init__(self, store: Readable, manager: TaskManager, ranges: Mapping[Range, str]) -> None:
        self._store, self._manager, self._ranges = store, manager, ranges
        self._directory = manager.directory / FETCHED

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        """Returns the bytes of a range, as the store does."""
        sha256 = None if size_bytes is None else self._ranges.get((path, offset, size_bytes))
        if sha256 is None:
            return self._store.get(path, offset, size_bytes)
        name = hashlib.sha256(f"{path} {offset} {size_bytes}".encode()).hexdigest()
        file = self._directory / name
        # Those who need it, too, wait for it: they would ask for the same.
        with self._manager.lock(f"{FETCHED}-{int(name, 16) % _LOCKS}"):
            data = _kept(file, sha256)
            if data is None:
                data = self._store.get(path, offset, size_bytes)
                if _is(data, sha256):
                    self._keep(file, data)
        return data

    def _keep(self, file: Path, data: bytes) -> None:
        try:
            # Not the directories above it: a newer run removes those.
            with fenced_if_removed(self._directory), suppress(FileExistsError):
                os.mkdir(self._directory, DIRECTORY_MODE)
            write_whole(file, data)
        except StorageError as error:
            # The others ask the store themselves.
            facts = {"job": self._manager.run.job, "error": str(error)}
            _log.warning("what was fetched is not kept for others", extra=facts)


def _kept(file: Path, sha256: str) -> bytes | None:
    """Returns the bytes in a file; None if there is none, or it is damaged."""
    try:
        with disk_errors("what was fetched cannot be read", file):
            data = file.read_bytes()
    except FileNotFoundError:
        return None
    return data if _is(data, sha256) else None


def _is(data: bytes, sha256: str) -> bool:
    return hashlib.sha256(data).hexdigest() == sha256
