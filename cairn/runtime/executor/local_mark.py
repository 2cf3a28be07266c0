"""What an environment's directory says of it, before it is opened: whose it is, and who died at it.

`boot-id` has the boot of the machine and the form of what is stored. `opened-{reader}` counts how
often it was opened since somebody came to an end with it. All of this is called under the lock of
the environment.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from cairn.errors import RefusedError
from cairn.runtime.executor.private_files import make_private, write_private
from cairn.runtime.executor.stored_keys import KEY_FORM

MOST_OPENINGS = 3
"""Processes that may open an environment one after the other and die: pages that make LMDB read
outside of its map kill whoever reads them, as SIGBUS or SIGSEGV, without a word. Spark tries a task
four times, so the last attempt begins with a new environment."""

_MARK = "boot-id"
_log = logging.getLogger(__name__)


def prepare(directory: Path, reader: str) -> None:
    """Makes the directory, and empties one that is not to be opened."""
    facts = {"directory": str(directory)}
    if not _is_ours(directory):
        discard(directory)
    elif _openings(directory, reader) >= MOST_OPENINGS:
        _log.warning(
            "the last %d processes that opened local state died, so it is rebuilt from storage",
            MOST_OPENINGS,
            extra=facts,
        )
        discard(directory)
    if not directory.exists():
        make_private(directory)
        # Last: without a mark, as after a kill here, the directory is made anew.
        write_private(directory / _MARK, _expected_mark().encode())


def discard(directory: Path) -> None:
    """Removes an environment. Who has it open keeps what it has, and finds a new one next time."""
    # First: without it, what a kill leaves of the rest is not used.
    (directory / _MARK).unlink(missing_ok=True)
    if directory.exists():
        shutil.rmtree(directory)


def note_opening(directory: Path, reader: str) -> None:
    """Counts an opening."""
    count = _openings(directory, reader) + 1
    write_private(_counter(directory, reader), b"%d" % count)


def forget_openings(directory: Path, reader: str) -> None:
    """Counts from the start again: a process has come to an end with what it read."""
    _counter(directory, reader).unlink(missing_ok=True)


def boot_id() -> str:
    """Returns an id of this boot of the machine.

    Raises:
        RefusedError: the system is not Linux, and has none where Linux has it.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise RefusedError(f"no boot id: {error}. Executors must run on Linux") from error


def _is_ours(directory: Path) -> bool:
    mark = directory / _MARK
    return mark.exists() and mark.read_bytes() == _expected_mark().encode()


def _expected_mark() -> str:
    return f"{boot_id()} {KEY_FORM}"


def _openings(directory: Path, reader: str) -> int:
    try:
        text = _counter(directory, reader).read_text()
    except FileNotFoundError:
        return 0
    # Killed while it was written: as good as any other sign of a death.
    return int(text) if text.isdecimal() else MOST_OPENINGS


def _counter(directory: Path, reader: str) -> Path:
    return directory / f"opened-{reader}"
