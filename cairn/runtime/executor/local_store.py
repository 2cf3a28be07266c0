"""Local state of one subtask: an LMDB environment that several processes may open.

It holds the state of one confirmed checkpoint, its position, and nothing newer. LMDB runs without
fsync: a killed process cannot hurt it, a crashed machine can, so an environment made under another
boot of the machine is thrown away before it is opened, as is one with another form of keys.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

import lmdb
import msgspec

from cairn.errors import RefusedError, StorageError
from cairn.keygroups import KeyGroupRange
from cairn.locks import lock
from cairn.state.entries import PREFIX_HEAD_BYTES, key_group_bounds, split
from cairn.state.view import DELETE, PUT, Changes

MAP_SIZE_BYTES = 1 << 36
"""Most local state of one subtask. Address space, not disk: the file grows with its content."""

_KEY_FORM = "3"
"""Of how keys are stored, see `_stored_key`. Another one is not readable by this code."""
_POSITION_KEY = b"\x00"
"""Before every entry's, so that entries can be appended behind the last one."""
_KEY_LIMIT_BYTES = 511
"""LMDB's. Only a key that ends in a hash is as long as this."""
_HASH_BYTES = 32
_HEAD_BYTES = _KEY_LIMIT_BYTES - _HASH_BYTES
_PREFIX_LIMIT_BYTES = 400
"""Of a prefix that is stored as it is. Leaves room for 79 bytes of the suffix before a hash."""
_ENTRIES_PER_PAGE = 10_000
_NO_VALUE = "a put without a value"
_LONGEST_GROUPING_KEY = (_PREFIX_LIMIT_BYTES - PREFIX_HEAD_BYTES).to_bytes(4, "big")


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


@dataclass(frozen=True, slots=True)
class Weight:
    """About how many bytes a restore of a subtask would read: its bases, and those on top."""

    base_bytes: int = 0
    change_bytes: int = 0


class LocalStore:
    """The LMDB environment of one subtask. Open one per path and process: see `open_local`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        _discard_unless_ours(directory)
        try:
            self._env = lmdb.open(
                str(directory),
                map_size=MAP_SIZE_BYTES,
                # A batch must not wait for the disk. After a crash of the machine, the boot id is
                # another.
                sync=False,
                metasync=False,
                max_readers=510,
                # Reads are by key, all over a file that may be larger than memory.
                readahead=False,
            )
        except lmdb.Error as error:
            raise StorageError(
                f"local state cannot be opened: {error}. Check the disk, or remove the directory: "
                "it is rebuilt from the checkpoint",
                file=str(directory),
            ) from error
        self._entries = self._env.open_db()
        # Slots of killed readers keep LMDB from reusing the pages that they were reading.
        self._env.reader_check()

    @contextmanager
    def read(self) -> Iterator[LocalReader]:
        """Yields a reader of one consistent snapshot."""
        with self._env.begin() as transaction:
            yield LocalReader(transaction)

    @contextmanager
    def write(self) -> Iterator[LocalWriter]:
        """Yields the one writer; its changes become visible at once, or not at all."""
        self._env.reader_check()
        try:
            with self._env.begin(write=True) as transaction:
                yield LocalWriter(transaction, self._entries)
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

    def weight(self) -> Weight:
        """Returns how much a restore of this state would read, as far as is known here."""
        data = self._transaction.get(_POSITION_KEY)
        # The same record as the position; msgspec takes the fields it knows.
        return Weight() if data is None else msgspec.msgpack.decode(data, type=Weight)

    def _make_get(self) -> Callable[[bytes], bytes | None]:
        get: Callable[[bytes], bytes | None] = self._transaction.get

        def get_entry(key: bytes) -> bytes | None:
            if len(key) <= _PREFIX_LIMIT_BYTES:
                return get(key)
            stored_key = _stored_key(key)
            data = get(stored_key)
            return data if data is None or stored_key == key else _unpack(data)[1]

        return get_entry

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries of one grouping key and state, in key order.

        `prefix` is a result of `entry_prefix`. Reads only the entries that it yields, but for user
        keys that differ only where their hash is stored.
        """
        start = _stored_prefix(prefix)
        alike: list[tuple[bytes, bytes]] = []
        head = b""
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(start):
                return
            for stored_key, stored_value in cursor.iternext():
                if not stored_key.startswith(start):
                    break
                if alike and not stored_key.startswith(head):
                    yield from sorted(alike)
                    alike.clear()
                if len(stored_key) < _HEAD_BYTES:
                    yield _real(stored_key, stored_value)
                else:
                    head = stored_key[:_HEAD_BYTES]
                    alike.append(_real(stored_key, stored_value))
            yield from sorted(alike)

    def last(self, prefix: bytes) -> bytes | None:
        """Returns the greatest key that starts with the prefix; None if there is none.

        `prefix` is what `entry_prefix` returns, and the key at most 8 bytes more: a list's sequence
        number.
        """
        start = _stored_prefix(prefix)
        with self._transaction.cursor() as cursor:
            # Behind every sequence number: those have 8 bytes.
            found = cursor.set_range(start + b"\xff" * 9)
            if not (cursor.prev() if found else cursor.last()):
                return None
            stored_key: bytes = cursor.key()
            return prefix + stored_key[len(start) :] if stored_key.startswith(start) else None

    def range(self, key_groups: KeyGroupRange) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries of some key groups; sorted but for keys over LMDB's limit.

        Costs no calls in Python for each entry whose key is stored as it is.
        """
        return chain.from_iterable(self._pages(*key_group_bounds(key_groups)))

    def _pages(self, lower: bytes, upper: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        with self._transaction.cursor() as cursor:
            entries = cursor.iternext() if cursor.set_range(lower) else iter(())
            while page := list(islice(entries, _ENTRIES_PER_PAGE)):
                is_last = page[-1][0] >= upper
                if is_last:
                    page = page[: bisect_left(page, (upper,))]
                yield page if _are_real([key for key, _ in page]) else [_real(*e) for e in page]
                if is_last:
                    return


class LocalWriter:
    """Changes of the one write transaction."""

    def __init__(self, transaction: lmdb.Transaction, entries: lmdb._Database) -> None:
        self._transaction = transaction
        self._entries = entries
        self.reader = LocalReader(transaction)

    def move_to(self, position: Position, weight: Weight | None = None) -> None:
        """Records which checkpoint's state the entries now are, and its weight if that is new."""
        kept = asdict(weight or self.reader.weight())
        self._transaction.put(_POSITION_KEY, msgspec.msgpack.encode(asdict(position) | kept))

    def clear(self, key_groups: KeyGroupRange) -> None:
        """Removes every entry of some key groups; where there are no others, page by page."""
        lower, upper = key_group_bounds(key_groups)
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(lower) or cursor.key() >= upper:
                return
            has_before = cursor.prev() and cursor.key() != _POSITION_KEY
            has_after = cursor.last() and cursor.key() >= upper
            if has_before or has_after:
                found = cursor.set_range(lower)
                while found and cursor.key() < upper:
                    found = cursor.delete()
                return
        # Dropping the database frees whole pages, but takes the position, too.
        position = self._transaction.get(_POSITION_KEY)
        self._transaction.drop(self._entries, delete=False)
        if position is not None:
            self._transaction.put(_POSITION_KEY, position)

    def apply(self, changes: Changes) -> None:
        """Applies a segment's changes in order.

        Raises:
            ValueError: a put has no value.
        """
        keys, values = changes.keys, changes.values
        with self._transaction.cursor() as cursor:
            if not any(changes.ops):  # PUT is 0
                _put_all(cursor, keys, values)
                return
            for op, key, value in zip(changes.ops, keys, values, strict=True):
                if op == PUT:
                    cursor.put(*_stored(key, value))
                elif op == DELETE:
                    self._transaction.delete(_stored_key(key))
                else:
                    _delete_prefix(cursor, _stored_prefix(key))


def _put_all(cursor: lmdb.Cursor, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
    """Puts entries, a base's into an empty range without a search for each one's place.

    Nothing is done in Python for each entry whose key is stored as it is.
    """
    if None in values:
        raise ValueError(_NO_VALUE)
    if max(map(len, keys), default=0) > _PREFIX_LIMIT_BYTES:
        cursor.putmulti(map(_stored, keys, values))
        return
    if keys and (not cursor.last() or cursor.key() < keys[0]):
        _, added = cursor.putmulti(zip(keys, values, strict=True), append=True)
        if added == len(keys):
            return
        # LMDB has left out the keys that were not in order.
    cursor.putmulti(zip(keys, values, strict=True))


def _delete_prefix(cursor: lmdb.Cursor, start: bytes) -> None:
    found = cursor.set_range(start)
    while found and cursor.key().startswith(start):
        found = cursor.delete()


def _stored_prefix(prefix: bytes) -> bytes:
    """Returns what stands for an entry prefix in LMDB: a long one's first bytes and its hash.

    The first bytes hold the length, so no prefix that is stored as it is looks like it.
    """
    if len(prefix) <= _PREFIX_LIMIT_BYTES:
        return prefix
    return prefix[:PREFIX_HEAD_BYTES] + hashlib.sha256(prefix).digest()


def _stored_key(key: bytes) -> bytes:
    """Returns the key that stands for an entry's in LMDB, under its limit.

    Within one prefix the order is that of the suffixes, but for such as differ after _HEAD_BYTES
    of the stored key: they end in their hash.
    """
    if len(key) <= _PREFIX_LIMIT_BYTES:
        return key
    suffix = split(key).suffix
    stored_key = _stored_prefix(key[: len(key) - len(suffix)]) + suffix
    if len(stored_key) < _KEY_LIMIT_BYTES:
        return stored_key
    return stored_key[:_HEAD_BYTES] + hashlib.sha256(suffix).digest()


def _stored(key: bytes, value: bytes | None) -> tuple[bytes, bytes]:
    """Returns an entry as LMDB has it: where another key stands for its own, the value has it."""
    if value is None:
        raise ValueError(_NO_VALUE)
    if len(key) <= _PREFIX_LIMIT_BYTES:
        return key, value
    stored_key = _stored_key(key)
    if stored_key == key:
        return key, value
    return stored_key, len(key).to_bytes(4, "big") + key + value


def _unpack(data: bytes) -> tuple[bytes, bytes]:
    end = 4 + int.from_bytes(data[:4], "big")
    return data[4:end], data[end:]


def _is_real(stored_key: bytes) -> bool:
    return len(stored_key) < _KEY_LIMIT_BYTES and stored_key[4:8] <= _LONGEST_GROUPING_KEY


def _are_real(stored_keys: Sequence[bytes]) -> bool:
    """Tells whether all keys are stored as they are."""
    longest = max(map(len, stored_keys), default=0)
    longest_grouping_key = max([key[4:8] for key in stored_keys], default=b"")
    return longest < _KEY_LIMIT_BYTES and longest_grouping_key <= _LONGEST_GROUPING_KEY


def _real(stored_key: bytes, value: bytes) -> tuple[bytes, bytes]:
    return (stored_key, value) if _is_real(stored_key) else _unpack(value)


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


def _discard_unless_ours(directory: Path) -> None:
    """Empties a directory that another boot, or a Cairn with another form of keys, has made."""
    expected = f"{boot_id()} {_KEY_FORM}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Beside the directory, as that is removed under the lock.
    with lock(directory.with_suffix(".lock")):
        mark = directory / "boot-id"
        if not mark.exists() or mark.read_text() != expected:
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir()
            # Last: without a mark, as after a kill here, the directory is made anew.
            mark.write_text(expected)
