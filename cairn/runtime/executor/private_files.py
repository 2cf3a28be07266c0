"""Files and directories that only their user may read or change, whatever the umask.

Who can write to a directory above them could put others in their place, so those are looked at.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from cairn.errors import RefusedError, StorageError

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_CHANGED_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_REMEDY = "or set cairn.local-dir to a directory of this user"


def make_private(directory: Path) -> None:
    """Makes a directory, and those above it that are missing, for this user alone."""
    try:
        os.mkdir(directory, DIRECTORY_MODE)
    except FileExistsError:
        if not directory.is_dir():
            raise
    except FileNotFoundError:
        make_private(directory.parent)
        make_private(directory)


@cache
def require_private(local_directory: Path, job_directory: Path) -> None:
    """Makes a job's local directory, unless another user could read or change what is put there.

    Once for each process: others could only change it if it was refused.

    Raises:
        RefusedError: it, or a directory above it, belongs to another user, or others may write to
            it.
        StorageError: it cannot be made.
    """
    for directory in (local_directory, job_directory):
        existing = next(above for above in (directory, *directory.parents) if above.exists())
        _refuse_foreign(existing)
        with disk_errors("the local directory cannot be used", directory):
            make_private(directory)
            _refuse_foreign(directory)
    found = os.stat(job_directory)
    if found.st_uid != os.geteuid():
        raise _refused(job_directory, f"belongs to {_user(found.st_uid)}")
    # Made under another umask by somebody else's hand, such as a deployment's.
    os.chmod(job_directory, DIRECTORY_MODE)


def _refuse_foreign(directory: Path) -> None:
    """Refuses a directory that another user could put something else in the place of.

    Raises:
        RefusedError: see `require_private`.
    """
    own = (0, os.geteuid())
    # Links too, as they are on the way: who owns one may point it elsewhere.
    for path in (directory, *directory.parents):
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            if found.st_uid not in own:
                raise _refused(path, f"is a symbolic link of {_user(found.st_uid)}")
            _refuse_foreign(Path(os.path.realpath(path)))
        elif found.st_uid not in own:
            raise _refused(path, f"belongs to {_user(found.st_uid)}")
        elif found.st_mode & _CHANGED_BY_OTHERS and not found.st_mode & stat.S_ISVTX:
            raise _refused(
                path,
                f"may be written to by others ({_octal(found.st_mode)}): chmod go-w, or +t",
            )


def _refused(path: Path, what: str) -> RefusedError:
    return RefusedError(
        f"local state would not be safe from other users: {path} {what}. This user is "
        f"{_user(os.geteuid())}. Change that, {_REMEDY}",
        file=str(path),
    )


def _user(user_id: int) -> str:
    try:
        return f"{pwd.getpwuid(user_id).pw_name} ({user_id})"
    except KeyError:  # in containers, users have no names
        return f"user {user_id}"


def _octal(mode: int) -> str:
    return f"mode {stat.S_IMODE(mode):04o}"


def write_private(file: Path, data: bytes) -> None:
    """Writes a file that only this user may read."""
    with open(file, "wb", opener=_open_private) as opened:
        opened.write(data)


@contextmanager
def disk_errors(what: str, file: Path) -> Iterator[None]:
    """Raises what the local disk raises as a StorageError, which says how much room it has.

    A file that is missing is left to who knows why.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise disk_error(what, error, file) from error


@contextmanager
def disk_errors_below(directory: Path) -> Iterator[None]:
    """Does so for the files below a directory alone: those of a processor are its own."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if not isinstance(error.filename, str) or directory not in Path(error.filename).parents:
            raise
        file = Path(error.filename)
        raise disk_error("a local file cannot be used", error, file) from error


def disk_error(what: str, error: Exception, file: Path) -> StorageError:
    """Returns the error for what the local disk has refused."""
    there = next(above for above in (file, *file.parents) if above.exists())
    free_bytes = shutil.disk_usage(there).free
    return StorageError(
        f"{what}: {error}. The disk has {free_bytes} bytes free. Free disk space and look for "
        "errors of the disk, or set cairn.local-dir; nothing is lost, the task runs again",
        file=str(file),
    )


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, FILE_MODE)
