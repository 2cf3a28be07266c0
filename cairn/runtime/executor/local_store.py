"""Local state of one subtask: an LMDB environment that several processes may open.

It holds the state of one confirmed checkpoint, its position, and nothing newer. All of it is in
storage, too, so an environment that cannot be trusted is thrown away: one that is damaged, or that
was made under another boot of the machine. LMDB runs without fsync: a killed process cannot hurt
it, a crashed machine can.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from cairn.errors import DamagedStateError, StorageError
from cairn.locks import lock
from cairn.runtime.executor.local_mark import (
    discard,
    forget_openings,
    note_opening,
    prepare,
)
from cairn.runtime.executor.local_reader import LocalReader
from cairn.runtime.executor.local_writer import LocalWriter
from cairn.runtime.executor.private_files import disk_error, disk_errors, make_private

FIRST_MAP_BYTES = 1 << 36
"""Address space, not disk: the file grows with its content, and the map where that is more."""

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.BadTxnError,
    lmdb.CursorFullError,
    lmdb.PageFullError,
    lmdb.ProblemError,
)
"""What LMDB raises at pages that it cannot have written so."""

_CANNOT_OPEN = "local state cannot be opened"
_log = logging.getLogger(__name__)


class MapGrownError(StorageError):
    """The map was too small for a transaction. It is larger now: do the transaction again."""


class LocalStore:
    """The LMDB environment of one subtask. Open one per path and process: see `open_local`.

    `reader` says who opens it, for what is counted in `local_mark`.
    """

    def __init__(self, directory: Path, reader: str = "task") -> None:
        self.directory = directory
        self.used_s = time.monotonic()
        """When it was last used, on the monotonic clock."""
        self._reader = reader
        self._users = 0
        self._is_noted = True
        self._env = self._open()
        self._entries = self._env.open_db()
        self._identity = self._find_identity()
        self._env.reader_check()

    @property
    def is_current(self) -> bool:
        """Whether the directory still has this environment: another process may have rebuilt it."""
        return self._identity == self._find_identity()

    @property
    def is_in_use(self) -> bool:
        """Whether a transaction is open."""
        return self._users > 0

    def close(self) -> None:
        """Closes the environment, with its three descriptors."""
        self._env.close()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notes, when the context ends however it does, that reading has not killed the process."""
        try:
            yield
        finally:
            if self._is_noted:
                self._is_noted = False
                forget_openings(self.directory, self._reader)

    @contextmanager
    def read(self) -> Iterator[LocalReader]:
        """Yields a reader of one consistent snapshot.

        Raises:
            DamagedStateError: what was read is not what was written; it is thrown away.
        """
        with self._in_use(), self._begin(write=False) as transaction:
            yield LocalReader(transaction)

    @contextmanager
    def write(self) -> Iterator[LocalWriter]:
        """Yields the one writer; its changes become visible at once, or not at all.

        Raises:
            DamagedStateError: see `read`.
            MapGrownError: do it again.
            StorageError: the disk is full, or fails.
        """
        with self._in_use(), self._begin(write=True) as transaction:
            writer = LocalWriter(transaction, self._entries)
            yield writer
            writer.finish()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        self._users += 1
        try:
            yield
        except DamagedStateError as error:
            self._throw_away(error)
            raise
        except lmdb.MapFullError as error:
            raise self._grown() from error
        except _DAMAGE as error:
            self._throw_away(error)
            raise DamagedStateError(
                f"local state is damaged: {error}. It is rebuilt from storage",
                file=str(self.directory),
            ) from error
        except lmdb.Error as error:
            raise disk_error("local state cannot be used", error, self.directory) from error
        finally:
            self._users -= 1
            self.used_s = time.monotonic()

    def _begin(self, *, write: bool) -> lmdb.Transaction:
        if write:
            # Slots of killed readers keep LMDB from reusing the pages that they were reading.
            self._env.reader_check()
        try:
            return self._env.begin(write=write)
        except lmdb.MapResizedError:
            # Another process has made the map larger: take its size.
            self._env.set_mapsize(0)
            return self._env.begin(write=write)

    def _grown(self) -> MapGrownError:
        """Doubles the map; the transaction that it was too small for has ended."""
        size_bytes = 2 * self._env.info()["map_size"]
        self._env.set_mapsize(size_bytes)
        facts = {"directory": str(self.directory), "size_bytes": size_bytes}
        _log.info("map of local state made larger", extra=facts)
        return MapGrownError(
            "local state has outgrown its map, which is larger now; the transaction is tried again",
            file=str(self.directory),
        )

    def _throw_away(self, error: Exception) -> None:
        """Removes the environment's files, unless another process has; others notice it next."""
        facts = {"directory": str(self.directory)}
        with lock(_lock_file(self.directory)):
            if self.is_current:
                _log.warning(
                    "local state is damaged, so it is rebuilt from storage: %s", error, extra=facts
                )
                discard(self.directory)

    def _find_identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.directory / "data.mdb")
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _open(self) -> lmdb.Environment:
        """Opens the environment; a new one, where that is damaged at first sight."""
        directory = self.directory
        make_private(directory.parent)
        with disk_errors(_CANNOT_OPEN, directory), lock(_lock_file(directory)):
            prepare(directory, self._reader)
            note_opening(directory, self._reader)
            try:
                return _open_whole(directory)
            except (DamagedStateError, *_DAMAGE) as error:
                facts = {"directory": str(directory)}
                _log.warning(
                    "local state is damaged, so it is rebuilt from storage: %s", error, extra=facts
                )
            except lmdb.Error as error:
                raise disk_error(_CANNOT_OPEN, error, directory) from error
            discard(directory)
            prepare(directory, self._reader)
            try:
                return _open_whole(directory)
            except lmdb.Error as error:
                raise disk_error(_CANNOT_OPEN, error, directory) from error


def _open_whole(directory: Path) -> lmdb.Environment:
    """Opens an environment, unless its file ends before its pages do: reading on is SIGBUS."""
    env = lmdb.open(
        str(directory),
        map_size=FIRST_MAP_BYTES,
        # A batch must not wait for the disk. After a crash of the machine, the boot id is another.
        sync=False,
        metasync=False,
        max_readers=510,
        mode=0o600,
        # Reads are by key, all over a file that may be larger than memory.
        readahead=False,
    )
    # In this order: others may make the file longer meanwhile.
    pages, page_bytes = env.info()["last_pgno"] + 1, env.stat()["psize"]
    found_bytes = os.stat(directory / "data.mdb").st_size
    # Two pages are there from the first transaction on.
    if pages > 2 and found_bytes < pages * page_bytes:
        env.close()
        raise DamagedStateError(
            f"data.mdb has {found_bytes} bytes, and its {pages} pages of {page_bytes} need more",
            file=str(directory),
        )
    return env


def _lock_file(directory: Path) -> Path:
    # Beside the directory, as that is removed under the lock.
    return directory.with_suffix(".lock")
