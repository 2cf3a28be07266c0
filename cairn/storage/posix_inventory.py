"""The inventory of a directory: every entry, and directories without one."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cairn.storage.inventory import (
    EmptyDirectory,
    FoundObject,
    KeyRange,
    UnfinishedUpload,
    check_unfinished,
)
from cairn.storage.posix import _ABSENT, PosixStore, _sort_key
from cairn.storage.store import TEMP_PREFIX, check_prefix


class PosixInventory:
    """Reads the directory of a `PosixStore`, one directory in memory at a time."""

    splits_directories = False

    def __init__(self, store: PosixStore) -> None:
        self._store = store
        self._root = store._root

    def directories(self, path: str) -> list[str]:
        """See `Inventory.directories`; no link is followed."""
        entries = self._entries(path)
        return sorted(f"{path}/{one.name}" for one in entries if one.is_dir(follow_symlinks=False))

    def list_all(self, keys: KeyRange) -> Iterator[FoundObject]:
        """See `Inventory.list_all`."""
        check_prefix(keys.prefix)
        return self._walk(keys.prefix.rpartition("/")[0], keys)

    def find(self, path: str) -> FoundObject | None:
        """See `Inventory.find`."""
        file = self._locate(path)
        try:
            found = file.lstat()
        except _ABSENT:
            self._store._require_root("look", path)
            return None
        except OSError as error:
            raise self._store._failed(error, "look", path) from error
        return None if stat.S_ISDIR(found.st_mode) else _found(path, found)

    def empty_directories(self, path: str) -> Iterator[EmptyDirectory]:
        """See `Inventory.empty_directories`; those below come first."""
        for directory in self.directories(path):
            yield from self.empty_directories(directory)
            if not self._entries(directory):
                modified_at = self._changed_at(directory)
                if modified_at is not None:
                    yield EmptyDirectory(directory, modified_at)

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """See `Inventory.unfinished_uploads`; a directory has none."""
        check_prefix(prefix)
        return iter(())

    def now(self) -> datetime:
        """See `Inventory.now`; a file server stamps what it makes by its own clock."""
        name = f"{TEMP_PREFIX}{uuid.uuid4()}"
        file = self._locate(name)
        try:
            with file.open("xb"):
                made = file.stat().st_mtime
            file.unlink(missing_ok=True)
        except OSError as error:
            self._store._require_root("write", name)
            raise self._store._failed(error, "write", name) from error
        return datetime.fromtimestamp(made, UTC)

    def delete_unfinished(self, paths: Sequence[str]) -> dict[str, str]:
        """See `Inventory.delete_unfinished`."""
        for path in paths:
            check_unfinished(path)
        failed: dict[str, str] = {}
        for path in paths:
            file = self._locate(path)
            try:
                file.unlink()
            except _ABSENT:
                self._store._require_root("delete", path)
            except OSError as error:
                failed[path] = str(self._store._failed(error, "delete", path))
        return failed

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> dict[str, str]:
        """See `Inventory.abort_uploads`; a directory has none."""
        return {}

    def _locate(self, path: str) -> Path:
        """Returns the file of a path that may be any file's; no link leads out of the storage."""
        file = self._root / path
        self._store._check_inside(file.parent, path)
        return file

    def _entries(self, path: str) -> list[os.DirEntry[str]]:
        """Returns a directory's entries; none where it is gone."""
        directory = self._root / path
        self._store._check_inside(directory, path)
        try:
            with os.scandir(directory) as scan:
                return list(scan)
        except _ABSENT:
            self._store._require_root("list", path)
            return []
        except OSError as error:
            raise self._store._failed(error, "list", path) from error

    def _walk(self, directory: str, keys: KeyRange) -> Iterator[FoundObject]:
        above = f"{directory}/" if directory else ""
        for entry in sorted(self._entries(directory), key=_sort_key):
            path = above + entry.name
            if entry.is_dir(follow_symlinks=False):
                if keys.may_hold_below(f"{path}/"):
                    yield from self._walk(path, keys)
            # None where it was deleted since the directory was read.
            elif keys.holds(path) and (found := self.find(path)) is not None:
                yield found

    def _changed_at(self, path: str) -> datetime | None:
        try:
            return _later(os.lstat(self._root / path))
        except _ABSENT:
            return None


def _found(path: str, of: os.stat_result) -> FoundObject:
    return FoundObject(
        path=path,
        size_bytes=of.st_size,
        modified_at=_later(of),
        version=f"{of.st_mtime_ns}-{of.st_ctime_ns}",
        is_plain=stat.S_ISREG(of.st_mode),
    )


def _later(of: os.stat_result) -> datetime:
    # A file that was copied or moved here keeps the time of its bytes, not that of its name.
    return datetime.fromtimestamp(max(of.st_mtime, of.st_ctime), UTC)
