"""Local state of one subtask: an LMDB environment that several processes may open.

It holds the state of one confirmed checkpoint, its position, and nothing newer. LMDB runs without
fsync: a killed process cannot hurt it, a crashed machine can, so an environment made under another
boot of the machine is thrown away before it is opened.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lmdb
import msgspec

from cairn.errors import RefusedError, StorageError
from cairn.keygroups import KeyGroupRange
from cairn.state.entries import key_group_bounds
from cairn.state.view import DELETE, PUT, Changes

MAP_SIZE_BYTES = 1 << 36
"""Most local state of one subtask. Address space, not disk: the file grows with what is in it."""

_POSITION_KEY = b"\xff\xff"
_KEY_LIMIT_BYTES = 511
_HASH_BYTES = 32
_HEAD_BYTES = _KEY_LIMIT_BYTES - _HASH_BYTES


@dataclass(frozen=True, slots=True)
class Position:
    """Which checkpoint's state an environment holds.

    `lineage` is the id of the run that made the checkpoint, so that a metastore restored from a
    backup, which gives the same ids again, is not taken for the one this state belongs to. `epoch`
    is that of the run which put the state here.
    """

    checkpoint_id: int
    lineage: str
    epoch: int


class LocalStore:
    """The LMDB environment of one subtask. Open one per path and process: see `open_local`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        _discard_other_boot(directory)
        try:
            self._env = lmdb.open(
                str(directory),
                map_size=MAP_SIZE_BYTES,
                sync=False,
                metasync=False,
                max_readers=510,
                readahead=False,
            )
        except lmdb.Error as error:
            raise StorageError(
                f"local state cannot be opened: {error}. Check the disk, or remove the directory: "
                "it is rebuilt from the checkpoint",
                file=str(directory),
            ) from error
        self._env.reader_check()

    @contextmanager
    def read(self) -> Iterator[LocalReader]:
        """Yields a reader of one consistent snapshot."""
        with self._env.begin() as transaction:
            yield LocalReader(transaction)

    @contextmanager
    def write(self) -> Iterator[LocalWriter]:
        """Yields the one writer; what it did becomes visible at once, or not at all."""
        self._env.reader_check()
        try:
            with self._env.begin(write=True) as transaction:
                yield LocalWriter(transaction)
        except (lmdb.DiskError, lmdb.MapFullError) as error:
            raise StorageError(
                f"local state cannot be written: {error}. Free disk space, or set cairn.local-dir",
                file=str(self.directory),
            ) from error


class LocalReader:
    """Reads of one snapshot; implements `cairn.state.view.Reader`."""

    def __init__(self, transaction: lmdb.Transaction) -> None:
        self._transaction = transaction
        self.get: Callable[[bytes], bytes | None] = self._make_get()

    def position(self) -> Position | None:
        """Returns which checkpoint's state this is; None for an empty environment."""
        data = self._transaction.get(_POSITION_KEY)
        return None if data is None else msgspec.msgpack.decode(data, type=Position)

    def _make_get(self) -> Callable[[bytes], bytes | None]:
        get: Callable[[bytes], bytes | None] = self._transaction.get

        def get_entry(key: bytes) -> bytes | None:
            if len(key) < _KEY_LIMIT_BYTES:
                return get(key)
            data = get(_short(key))
            return None if data is None else _unpack(data)[1]

        return get_entry

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries whose key starts with the prefix, in key order."""
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(prefix[:_HEAD_BYTES]):
                return
            entries = _entries_from(cursor, prefix)
            for key, value in entries:
                if len(key) > _HEAD_BYTES:
                    # LMDB orders what follows by hashes, so it has to be sorted here.
                    yield from sorted([(key, value), *entries])
                    return
                yield key, value

    def last(self, prefix: bytes) -> bytes | None:
        """Returns the greatest key that starts with the prefix; None if there is none.

        The key is the prefix and at most 8 bytes more: a list's sequence number.
        """
        if len(prefix) + 8 >= _KEY_LIMIT_BYTES:
            return max((key for key, _ in self.scan(prefix)), default=None)
        with self._transaction.cursor() as cursor:
            found = cursor.set_range(prefix + b"\xff" * 9)
            if not (cursor.prev() if found else cursor.last()):
                return None
            key: bytes = cursor.key()
            return key if key.startswith(prefix) else None

    def range(self, key_groups: KeyGroupRange) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries of some key groups; sorted but for keys over LMDB's limit."""
        lower, upper = key_group_bounds(key_groups)
        with self._transaction.cursor() as cursor:
            if cursor.set_range(lower):
                for key, value in cursor.iternext():
                    if key >= upper:
                        return
                    yield _real(key, value)


class LocalWriter:
    """Changes of the one write transaction."""

    def __init__(self, transaction: lmdb.Transaction) -> None:
        self._transaction = transaction
        self.reader = LocalReader(transaction)

    def move_to(self, position: Position) -> None:
        """Records which checkpoint's state the entries now are."""
        self._transaction.put(_POSITION_KEY, msgspec.msgpack.encode(position))

    def clear(self, key_groups: KeyGroupRange) -> None:
        """Removes every entry of some key groups."""
        lower, upper = key_group_bounds(key_groups)
        with self._transaction.cursor() as cursor:
            found = cursor.set_range(lower)
            while found and cursor.key() < upper:
                found = cursor.delete()

    def apply(self, changes: Changes) -> None:
        """Applies a segment's changes in order."""
        with self._transaction.cursor() as cursor:
            if all(op == PUT for op in changes.ops):
                cursor.putmulti(map(_stored, changes.keys, changes.values))
                return
            for op, key, value in zip(changes.ops, changes.keys, changes.values, strict=True):
                if op == PUT:
                    cursor.put(*_stored(key, value))
                elif op == DELETE:
                    self._transaction.delete(_short(key))
                else:
                    for entry, _ in list(self.reader.scan(key)):
                        self._transaction.delete(_short(entry))


def _short(key: bytes) -> bytes:
    """Returns the key under LMDB's limit: a long one keeps its head and ends in its hash."""
    if len(key) < _KEY_LIMIT_BYTES:
        return key
    return key[:_HEAD_BYTES] + hashlib.sha256(key).digest()


def _stored(key: bytes, value: bytes | None) -> tuple[bytes, bytes]:
    if value is None:
        raise ValueError("a put without a value")
    if len(key) < _KEY_LIMIT_BYTES:
        return key, value
    return _short(key), len(key).to_bytes(4, "big") + key + value


def _unpack(data: bytes) -> tuple[bytes, bytes]:
    end = 4 + int.from_bytes(data[:4], "big")
    return data[4:end], data[end:]


def _real(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    return (key, value) if len(key) < _KEY_LIMIT_BYTES else _unpack(value)


def _entries_from(cursor: lmdb.Cursor, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    head = prefix[:_HEAD_BYTES]
    for stored_key, stored_value in cursor.iternext():
        if not stored_key.startswith(head):
            return
        key, value = _real(stored_key, stored_value)
        if key.startswith(prefix):
            yield key, value


_open: dict[tuple[int, Path], LocalStore] = {}


def open_local(directory: Path) -> LocalStore:
    """Returns this process's store on a directory: LMDB forbids opening one twice."""
    key = (os.getpid(), directory)
    if key not in _open:
        _open[key] = LocalStore(directory)
    return _open[key]


def boot_id() -> str:
    """Returns an id of this boot of the machine.

    Raises:
        RefusedError: the system is not Linux, and has none where Linux has it.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise RefusedError(f"no boot id: {error}. Executors must run on Linux") from error


def _discard_other_boot(directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = directory / "boot-id"
        if not mark.exists() or mark.read_text() != boot_id():
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir()
            mark.write_text(boot_id())
    finally:
        os.close(lock)
