"""An object store in a local or network directory."""

from __future__ import annotations

import errno
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from cairn.errors import BadInputError, StorageError
from cairn.storage.posix_copy import copy_range
from cairn.storage.posix_files import open_no_link, open_present, sync_directory
from cairn.storage.ranges import ByteRange
from cairn.storage.store import (
    LONGEST_WRITE_S,
    TEMP_PREFIX,
    StoredObject,
    can_append_by_probe,
    check_by_probe,
    check_path,
    check_prefix,
    check_range,
    exists_error,
    late_error,
    missing_error,
    short_read_error,
    wrong_end_error,
)

_log = logging.getLogger(__name__)

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)

_NEVER_WORKS = {
    errno.EACCES: "give this user read and write permission",
    errno.EPERM: "give this user write permission, on a file system with hard links",
    errno.EROFS: "mount it for writing",
    errno.ENOTDIR: "name a directory; a part of the path is a file",
    errno.EEXIST: "name a directory; a part of the path is a file",
    errno.ELOOP: "name a path without symbolic links below the storage",
    errno.ENAMETOOLONG: "name a shorter path",
}
"""What to do, by errno, where trying again cannot help."""


_REMOVED_FOR_S = 5.0
"""How long a directory that is removed whenever it is made is made again."""


class PosixStore:
    """Objects are files below `root`; one that is put appears whole and fsynced, or not at all.

    A write is made to `.tmp-<uuid>` beside the object first. A killed process may leave that file
    behind; it is never listed. `put` and `check_writable` make the root; where it is missing,
    every other verb raises StorageError rather than take its objects for missing.
    """

    sends_requests = False
    largest_file_bytes = None

    def __init__(self, root: Path, *, longest_write_s: float = LONGEST_WRITE_S) -> None:
        self._root = root
        self._longest_write_s = longest_write_s

    @property
    def url(self) -> str:
        """The root as a `file:///` URL."""
        return self._root.as_uri()

    def put(self, path: str, chunks: Sequence[bytes | memoryview]) -> None:
        """See `ObjectStore.put`."""
        self._make(path, lambda file: file.writelines(chunks))

    def copy(self, path: str, ranges: Sequence[ByteRange]) -> int:
        """See `ObjectStore.copy`; the file system copies, or shares blocks, where it can."""
        for one in ranges:
            check_range(one.path, one.offset, one.size_bytes)
        # It would be made, as by a put; then its objects would seem to be missing.
        self._require_root("copy to", path)
        passed_bytes = 0

        def write(file: IO[bytes]) -> None:
            nonlocal passed_bytes
            # From the start, should the directory be removed meanwhile.
            passed_bytes = sum(self._copy_range(one, file) for one in ranges)

        self._make(path, write)
        return passed_bytes

    def _copy_range(self, one: ByteRange, target: IO[bytes]) -> int:
        """Appends a range of an object to a file; returns how many bytes passed through."""
        try:
            with open(self._locate(one.path), "rb", opener=open_no_link, buffering=0) as source:
                found_bytes = os.fstat(source.fileno()).st_size
                if found_bytes < one.end:
                    raise short_read_error(
                        self.url, one.path, one.offset, one.size_bytes, found_bytes
                    )
                return copy_range(source, one, target)
        except _ABSENT as error:
            self._require_root("read", one.path)
            raise missing_error(self.url, one.path, one.offset) from error
        except OSError as error:
            raise self._failed(error, "copy", one.path, one.offset) from error

    def _make(self, path: str, write: Callable[[IO[bytes]], None]) -> None:
        """Makes an object of what `write` puts into a file, which may be asked for again."""
        began = time.monotonic()
        target = self._locate(path)
        try:
            new = None
            while new is None:
                try:
                    new = self._put(path, target, write, began)
                except FileNotFoundError:
                    # A cleanup has just removed the directory as given up, once or more often.
                    if time.monotonic() - began > _REMOVED_FOR_S:
                        raise
                    _log.warning("directory removed during a write; again", extra={"file": path})
        except OSError as error:
            raise self._failed(error, "write", path) from error
        if not new:
            raise exists_error(self.url, path)

    def append(self, path: str, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        """See `ObjectStore.append`."""
        self._append(path, offset, chunks)

    def can_append(self) -> bool:
        """See `ObjectStore.can_append`."""
        return can_append_by_probe(self, self._append)

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        check_range(path, offset, size_bytes)
        try:
            # Without following a link: one in the object's place could lead out of the storage.
            with open(self._locate(path), "rb", opener=open_no_link) as file:
                found_bytes = os.fstat(file.fileno()).st_size
                file.seek(offset)
                # No buffer for what is not there: a range may claim terabytes. At least a byte, so
                # that a failing disk says so.
                there_bytes = max(found_bytes - offset, 1)
                data = file.read(-1 if size_bytes is None else min(size_bytes, there_bytes))
        except _ABSENT as error:
            self._require_root("read", path)
            raise missing_error(self.url, path, offset) from error
        except OSError as error:
            raise self._failed(error, "read", path, offset) from error
        if offset > found_bytes or (size_bytes is not None and len(data) != size_bytes):
            raise short_read_error(self.url, path, offset, size_bytes, found_bytes)
        return data

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """See `ObjectStore.list`; a page is one directory."""
        check_prefix(prefix)
        directory, slash, _ = prefix.rpartition("/")
        start = self._root / directory
        self._check_inside(start, prefix)
        return self._walk(start, directory + slash, prefix)

    def delete_many(self, paths: Sequence[str]) -> dict[str, str]:
        """See `ObjectStore.delete_many`; only `cairn/maintenance/deleter.py` may call this."""
        files = {path: self._locate(path) for path in paths}
        changed: set[Path] = set()
        failed: dict[str, str] = {}
        for path, file in files.items():
            try:
                file.unlink()
            except _ABSENT:
                self._require_root("delete", path)
            except OSError as error:
                # The others are deleted all the same; this one keeps its intent.
                failed[path] = str(self._failed(error, "delete", path))
            else:
                changed.add(file.parent)
        # Once per directory, and before anybody records the deletes: after a crash none reappears.
        self._sync_present(changed)
        return failed

    def remove_directory(self, path: str) -> bool:
        """See `ObjectStore.remove_directory`."""
        directory = self._locate(path)
        self._check_inside(directory, path)
        return self._remove(directory, path)

    def _remove(self, directory: Path, path: str) -> bool:
        try:
            # Unfinished writes of killed processes would keep the directory for ever.
            for temp in directory.glob(f"{TEMP_PREFIX}*"):
                temp.unlink(missing_ok=True)
            directory.rmdir()
        except _ABSENT:
            self._require_root("remove", path)
            return not directory.exists()
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise self._failed(error, "remove", path) from error
        self._sync_present([directory.parent])
        return True

    def remove_empty(self, path: str) -> bool:
        """See `ObjectStore.remove_empty`."""
        top = self._locate(path)
        self._check_inside(top, path)
        self._require_root("remove", path)
        try:
            # From below, and no link is followed.
            inside = [found for found, _, _ in os.walk(top, topdown=False, onerror=_raise_present)]
        except OSError as error:
            raise self._failed(error, "remove", path) from error
        kept = [one for one in inside if not self._remove(Path(one), path)]
        return not kept

    def check_writable(self) -> None:
        """See `ObjectStore.check_writable`."""
        check_by_probe(self)

    def _put(
        self, path: str, target: Path, write: Callable[[IO[bytes]], None], began: float
    ) -> bool:
        """Writes an object whole; returns False if its name is taken."""
        # Beside the object, as a link cannot cross file systems.
        temp = target.with_name(f"{TEMP_PREFIX}{uuid.uuid4()}")
        directories = self._make_directories(target.parent)
        try:
            _write(temp, write)
            self._refuse_late(path, time.monotonic() - began)
            # A link and no rename: a rename would replace an object that has the name.
            new = _link(temp, target)
        finally:
            temp.unlink(missing_ok=True)
        # After the link: in a crash, a name that is not on disk is lost with all its bytes.
        for directory in directories:
            sync_directory(directory)
        return new

    def _append(
        self,
        path: str,
        offset: int,
        chunks: Sequence[bytes | memoryview],
        before_close: Callable[[], None] = lambda: None,
    ) -> None:
        check_range(path, offset, None)
        try:
            # Never creates: an object that a cleanup has deleted must not come back as its own end.
            with open(self._locate(path), "ab", opener=open_present) as file:
                found_bytes = os.fstat(file.fileno()).st_size
                if found_bytes != offset:
                    raise wrong_end_error(self.url, path, offset, found_bytes)
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
                before_close()
        except _ABSENT as error:
            self._require_root("append", path)
            raise wrong_end_error(self.url, path, offset, None) from error
        except OSError as error:
            raise self._failed(error, "append", path, offset) from error

    def _refuse_late(self, path: str, took_s: float) -> None:
        """Keeps an object from appearing after a cleanup that has deleted it, as it may by then."""
        if took_s > self._longest_write_s:
            raise late_error(self.url, path, took_s, self._longest_write_s)

    def _locate(self, path: str) -> Path:
        check_path(path)
        file = self._root / path
        self._check_inside(file.parent, path)
        return file

    def _check_inside(self, directory: Path, path: str) -> None:
        # The directory and not the object: that is opened without following links.
        real = Path(os.path.realpath(directory))
        # Nor within the storage: one in the place of a job's root could lead to another job's.
        if real != Path(os.path.realpath(self._root)) / directory.relative_to(self._root):
            raise BadInputError(
                f"storage {self.url}: a symbolic link leads to {real}; remove the link",
                file=path,
            )

    def _require_root(self, verb: str, path: str) -> None:
        """Tells a missing object from a missing storage, such as a disk that is not mounted."""
        if not self._root.is_dir():
            found = "a file" if self._root.exists() else "nothing"
            raise StorageError(
                f"storage {self.url}: cannot {verb}: {found} is where its directory was; mount the "
                "disk or move the directory back, then try again",
                file=path,
            )

    def _make_directories(self, directory: Path) -> tuple[Path, ...]:
        """Makes `directory`; returns the directories to fsync for it to survive a crash.

        All up to the root, even if they were there: another process may have made them just now
        and not have fsynced them yet.
        """
        chain = (directory, *directory.parents)
        present = next(i for i, ancestor in enumerate(chain) if ancestor.is_dir())
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            if any(above.exists() and not above.is_dir() for above in chain):
                raise
            # One of them was there, and was removed before `mkdir` looked whether it is one.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        return chain[: max(present, chain.index(self._root)) + 1]

    def _walk(self, directory: Path, above: str, prefix: str) -> Iterator[StoredObject]:
        try:
            # One directory at a time: a listing of all would hold every object in memory.
            with os.scandir(directory) as scan:
                entries = sorted(scan, key=_sort_key)
        except _ABSENT:
            self._require_root("list", prefix)
            return
        except OSError as error:
            raise self._failed(error, "list", prefix) from error
        for entry in entries:
            path = above + entry.name
            if not path.startswith(prefix):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(Path(entry.path), f"{path}/", prefix)
            elif entry.is_file(follow_symlinks=False) and not entry.name.startswith(TEMP_PREFIX):
                yield from self._describe(entry, path)

    def _describe(self, entry: os.DirEntry[str], path: str) -> Iterator[StoredObject]:
        try:
            stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # deleted since the directory was read
            self._require_root("list", path)
            return
        except OSError as error:
            raise self._failed(error, "list", path) from error
        yield StoredObject(path, stat.st_size, datetime.fromtimestamp(stat.st_mtime, UTC))

    def _sync_present(self, directories: Iterable[Path]) -> None:
        for directory in directories:
            try:
                sync_directory(directory)
            except _ABSENT:
                continue
            except OSError as error:
                raise self._failed(error, "fsync", str(directory)) from error

    def _failed(
        self, error: OSError, verb: str, path: str, offset: int | None = None
    ) -> BadInputError | StorageError:
        text = f"storage {self.url}: cannot {verb}: {error.strerror}"
        advice = _NEVER_WORKS.get(error.errno or 0)
        if advice is None:
            return StorageError(text, file=path, offset=offset)
        return BadInputError(f"{text}; {advice}", file=path, offset=offset)


def _write(temp: Path, write: Callable[[IO[bytes]], None]) -> None:
    with temp.open("xb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _link(temp: Path, target: Path) -> bool:
    """Gives `temp` its name as an object; returns False if the name is another object's."""
    try:
        os.link(temp, target, follow_symlinks=False)
    except FileExistsError:
        # On NFS a request whose answer was lost is sent again, and finds what it has done.
        return os.path.samestat(os.lstat(temp), os.lstat(target))
    return True


def _sort_key(entry: os.DirEntry[str]) -> str:
    """Sorts a directory where its objects belong: `a-b` is before `a/b`."""
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name


def _raise_present(error: OSError) -> None:
    # One that is gone has nothing in it.
    if not isinstance(error, _ABSENT):
        raise error
