"""What every object store offers, and the rules that hold for all of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from cairn.errors import BadInputError, RefusedError, StorageError
from cairn.storage.ranges import ByteRange

TEMP_PREFIX = ".tmp-"
"""File names that start so are unfinished writes, never objects."""

PROBE_PREFIX = ".cairn-probe-"
"""Names of probes start so, right below the URL of a store."""

LONGEST_WRITE_S = 240
"""No object appears longer than this after its `put` was called, whatever happens to the caller."""

LONGEST_HOLD_S = 60
"""A write that is delayed longer than this after its intent is not sent at all."""

_PROBE = b"cairn checks that this storage can be written\n"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as a listing shows it; `modified_at` is in UTC."""

    path: str
    size_bytes: int
    modified_at: datetime


class Readable(Protocol):
    """What readers need of a store."""

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        """Returns exactly `size_bytes` bytes from `offset` on, or all up to the end.

        Raises:
            StorageError: the object is missing or ends before the range does.
        """
        ...


class ObjectStore(Readable, Protocol):
    """Bytes by path below one URL. Objects are written once, read, deleted; some stores append.

    A path is `/`-separated, relative to the URL, without empty, `.` and `..` parts; a path of
    another form is a BadInputError in every verb. All verbs may be called from several threads
    and in forked processes. They raise StorageError when the store fails and the call may be
    repeated, BadInputError when it can never work (no such bucket, no permission).
    """

    @property
    def url(self) -> str:
        """The normalised URL of the store, without secrets."""
        ...

    @property
    def sends_requests(self) -> bool:
        """Whether each write is a request to a service, so that another one may be faster."""
        ...

    @property
    def largest_file_bytes(self) -> int | None:
        """The largest that a file may be meant to get, with room for a last segment; None: any."""
        ...

    def put(self, path: str, chunks: Sequence[bytes | memoryview]) -> None:
        """Writes one object, the concatenation of `chunks`, atomically and durably.

        After a StorageError the object may be there or not, or appear up to `LONGEST_WRITE_S`
        after the call: try again under a new path.

        Raises:
            RefusedError: an object of that path exists; it is left as it was.
            BadInputError: it is larger than the store takes in one request; nothing was sent.
        """
        ...

    def copy(self, path: str, ranges: Sequence[ByteRange]) -> int:
        """Writes one object, the concatenation of ranges of others, atomically and durably.

        The store copies the bytes itself where it can. Returns how many of them passed through
        this process instead: those were compared with their SHA-256, of all the sizes were. What
        `put` says of errors and of when the object may appear holds here, too.

        Raises:
            RefusedError: an object of that path exists; it is left as it was.
            StorageError: a source is missing or ends before its range does, or it took too long.
            CorruptSegmentError: bytes that passed through are not those of the checksum.
        """
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yields the objects whose path starts with `prefix`, page by page, sorted by path.

        The prefix is text, not a directory: `job-1` also matches `job-10/a.seg`, `job-1/` does not.

        Raises:
            StorageError, BadInputError: the store itself is not there; it is never shown empty.
        """
        ...

    def delete_many(self, paths: Sequence[str]) -> dict[str, str]:
        """Deletes objects for good; only `cairn/maintenance/deleter.py` may call this.

        Returns the errors by path, for the paths that failed; a missing object counts as
        deleted. When the store cannot be reached or is not there it raises instead, with part of
        the objects deleted; the same call may be repeated.
        """
        ...

    def append(self, path: str, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        """Adds bytes at the end of an object: durable and readable when it returns.

        One writer at a time. After any other error than RefusedError the object may have some of
        the bytes: nothing may be appended to it again.

        Raises:
            RefusedError: the object is missing or does not end at `offset`; nothing was added.
            BadInputError: this store cannot append, see `can_append`.
        """
        ...

    def can_append(self) -> bool:
        """Tells whether appended bytes are readable before their writer closes, by doing it."""
        ...

    def remove_directory(self, path: str) -> bool:
        """Removes a directory without objects; only `cairn/maintenance/deleter.py` may call this.

        The remains of unfinished writes in it are removed too. Returns False, and keeps the
        directory, if it holds anything else; True if it is removed, or the store has no
        directories and no object whose path lies in it.
        """
        ...

    def remove_empty(self, path: str) -> bool:
        """Removes a directory without objects in it and below; only the deleter may call this.

        The remains of unfinished writes go, too. Returns False, and keeps what leads to an object,
        if there is one; True if there is none.
        """
        ...

    def check_writable(self) -> None:
        """Writes an object, reads it back, tries to overwrite it and removes it.

        Raises:
            BadInputError: this URL can never work, or the store overwrites existing objects.
            StorageError: the store does not work now.
        """
        ...


def find_object(store: ObjectStore, path: str) -> StoredObject | None:
    """Returns an object as a listing shows it; None if it is not there.

    Raises:
        StorageError, BadInputError: the storage failed, or is not there.
    """
    # By a listing: where the storage itself is missing, that is an error and no empty answer.
    return next((found for found in store.list(path) if found.path == path), None)


def put_in_time(
    store: ObjectStore, path: str, chunks: Sequence[bytes | memoryview], began_s: float
) -> None:
    """Writes an object whose intent was recorded after `began_s`, in s on the monotonic clock.

    Cleanup deletes an object for good once no request for it can be under way any more.

    Raises:
        StorageError: the store failed, or that is more than `LONGEST_HOLD_S` ago, as after the
            process was stopped, and nothing was sent.
        RefusedError: an object of that path exists.
    """
    _refuse_held(path, began_s)
    store.put(path, chunks)


def copy_in_time(store: ObjectStore, path: str, ranges: Sequence[ByteRange], began_s: float) -> int:
    """Does `ObjectStore.copy` for an intent as `put_in_time` does `put`.

    Raises:
        StorageError, RefusedError, CorruptSegmentError: see `ObjectStore.copy` and `put_in_time`.
    """
    _refuse_held(path, began_s)
    return store.copy(path, ranges)


def _refuse_held(path: str, began_s: float) -> None:
    # Since before the intent: the row that cleanup counts from is younger than that.
    held_s = time.monotonic() - began_s
    if held_s > LONGEST_HOLD_S:
        raise StorageError(
            f"the process was held up for {held_s:.0f} s between the write intent and the write, "
            "so nothing was sent; try again",
            file=path,
        )


def check_path(path: str) -> None:
    """Raises BadInputError unless `path` names an object below the store's URL."""
    parts = path.split("/")
    if not path.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise BadInputError(
            f"{path!r} is no path of an object: use names joined by '/', none of them empty, "
            "'.' or '..', without control characters"
        )
    if parts[-1].startswith(TEMP_PREFIX):
        raise BadInputError(f"{path!r} is no path of an object: {TEMP_PREFIX}* is for unfinished")


def check_prefix(prefix: str) -> None:
    """Raises BadInputError unless some path of an object can start with `prefix`."""
    directory = prefix.rpartition("/")[0]
    if "/" in prefix:
        check_path(directory)
    if not prefix.isprintable():
        raise BadInputError(f"{prefix!r} is no prefix of a path: it has control characters")


def check_range(path: str, offset: int, size_bytes: int | None) -> None:
    """Raises BadInputError for a range that no object can have."""
    if offset < 0 or (size_bytes is not None and size_bytes < 0):
        raise BadInputError(
            f"a range starts at 0 or later and has 0 bytes or more; found {size_bytes} bytes "
            f"from {offset} on",
            file=path,
            offset=offset,
        )


def missing_error(url: str, path: str, offset: int | None) -> StorageError:
    """Returns the error for an object that is not there."""
    return StorageError(f"storage {url} has no such object", file=path, offset=offset)


def short_read_error(
    url: str, path: str, offset: int, size_bytes: int | None, found_bytes: int
) -> StorageError:
    """Returns the error for a range that ends past the end of an object of `found_bytes`."""
    wanted = "the rest" if size_bytes is None else f"{size_bytes} bytes"
    return StorageError(
        f"storage {url}: {wanted} from offset {offset} wanted, but the object has {found_bytes} "
        "bytes; it is not the file that was written or the range is not its own",
        file=path,
        offset=offset,
    )


def late_error(url: str, path: str, took_s: float, limit_s: float) -> StorageError:
    """Returns the error for an object that would appear later than others count on."""
    return StorageError(
        f"storage {url}: writing took {took_s:.0f} s, longer than the {limit_s:g} s in which an "
        "object may appear; nothing was written",
        file=path,
    )


def exists_error(url: str, path: str) -> RefusedError:
    """Returns the error for a write to a path that is taken."""
    return RefusedError(
        f"storage {url} already has an object of this path; objects are never overwritten, "
        "write under a new path",
        file=path,
    )


def wrong_end_error(url: str, path: str, offset: int, found_bytes: int | None) -> RefusedError:
    """Returns the error for an append to an object that does not end where its writer left it."""
    found = "is missing" if found_bytes is None else f"has {found_bytes} bytes"
    return RefusedError(
        f"storage {url}: bytes were to be added at offset {offset}, but the object {found}; write "
        "a new object",
        file=path,
        offset=offset,
    )


def can_append_by_probe(
    store: ObjectStore, append: Callable[[str, int, Sequence[bytes], Callable[[], None]], None]
) -> bool:
    """Does the work of `ObjectStore.can_append`; `append` calls its last argument before closing.

    Raises:
        StorageError, BadInputError: see `ObjectStore.check_writable`.
    """
    path = f"{PROBE_PREFIX}{uuid.uuid4()}"
    seen: list[bytes] = []
    store.put(path, [_PROBE])
    try:
        # Read while the writer has it open: some network file systems show the bytes at its close.
        append(path, len(_PROBE), [_PROBE], lambda: seen.append(store.get(path)))
    finally:
        store.delete_many([path])
    return seen == [_PROBE * 2]


def check_by_probe(store: ObjectStore) -> None:
    """Does the work of `ObjectStore.check_writable` with the other verbs of `store`."""
    path = f"{PROBE_PREFIX}{uuid.uuid4()}"
    store.put(path, [_PROBE])
    try:
        _check_probe(store, path)
    finally:
        failed = store.delete_many([path])
    # Here and not in the first cleanup: a storage that never deletes only grows.
    if failed:
        raise StorageError(
            f"storage {store.url} was written but not cleaned: {failed[path]}; allow deletes there",
            file=path,
        )


def _check_probe(store: ObjectStore, path: str) -> None:
    found = store.get(path)
    if found != _PROBE:
        raise StorageError(
            f"storage {store.url} returned {len(found)} other bytes than the {len(_PROBE)} written",
            file=path,
        )
    try:
        store.put(path, [_PROBE])
    except RefusedError:
        return
    raise BadInputError(
        f"storage {store.url} overwrites existing objects: it ignores If-None-Match. Use a store "
        "that honours it",
        file=path,
    )
