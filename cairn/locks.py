"""File locks between the processes of one machine. A lock dies with its holder.

Every wait says so in the log when it passes a second, and ends at a deadline.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from cairn.errors import StorageError

DEADLINE_S = 600.0
"""A holder takes less at most: all that it does has a timeout."""
LONG_WAIT_S = 1.0
LOCKS_OF_THE_SYSTEM = Path("/proc/locks")
_PAUSE_RANGE_S = (0.002, 0.05)
_PAUSE_SHARE = 0.1
"""Of the time waited so far, so that a long wait costs few looks and is not made much longer."""

_log = logging.getLogger(__name__)


@contextmanager
def lock(file: Path) -> Iterator[None]:
    """Holds the lock of a file, which is made if it is not there.

    Raises:
        StorageError: another process has held it for `DEADLINE_S`.
    """
    # Nobody unlinks a file that others wait for: at a removed one, who waits gets another lock than
    # who opens it next. Claims of uploads are unlinked, and only looked at.
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _acquire(descriptor, file)
        yield
    finally:
        os.close(descriptor)


def try_lock(file: Path, held: ExitStack) -> int | None:
    """Locks a file until `held` closes, and returns its descriptor.

    None if another has it locked, or it does not exist.
    """
    with ExitStack() as mine, suppress(FileNotFoundError, BlockingIOError):
        descriptor = os.open(file, os.O_RDWR)
        mine.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(file)):  # not moved meanwhile
            held.push(mine.pop_all())
            return descriptor
    return None


def release(descriptor: int) -> None:
    """Unlocks what `try_lock` has locked, and leaves it open."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def retake(descriptor: int) -> bool:
    """Locks again what was released; False if another has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_free(file: Path) -> bool:
    """Tells whether nobody has a file locked. A missing one is free."""
    try:
        with file.open("rb+") as opened:
            # Shared, so that two who only look do not take each other for a holder.
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True


def wait_for_lock(file: Path) -> None:
    """Returns once nobody has the file locked, or it is removed.

    Raises:
        StorageError: another process has held it for `DEADLINE_S`.
    """
    with suppress(FileNotFoundError), file.open("rb+") as opened:
        _acquire(opened.fileno(), file)


class Wait:
    """A wait that looks again and again, for what no single lock stands for."""

    def __init__(self, what: str, directory: Path) -> None:
        self._what = what
        self._directory = directory
        self._began_s = time.monotonic()
        self._is_told = False

    @property
    def waited_s(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self._began_s

    def pause(self) -> None:
        """Sleeps until it is time to look again.

        Raises:
            StorageError: it has lasted for `DEADLINE_S`.
        """
        waited_s = self.waited_s
        if waited_s > LONG_WAIT_S and not self._is_told:
            self._is_told = True
            facts = {"what": self._what, "directory": str(self._directory)}
            _log.warning("waiting for %s", self._what, extra=facts)
        if waited_s > DEADLINE_S:
            raise StorageError(
                f"waited {waited_s:.0f} s for {self._what}. The processes that hold locks in this "
                "directory have it; look whether their uploads hang, and end those that do",
                file=str(self._directory),
            )
        least_s, most_s = _PAUSE_RANGE_S
        time.sleep(min(max(_PAUSE_SHARE * waited_s, least_s), most_s))


def _acquire(descriptor: int, file: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _wait(descriptor, file)


def _wait(descriptor: int, file: Path) -> None:
    """Waits in a thread: flock has no timeout, and who asks again and again loses its place."""
    outcome: SimpleQueue[OSError | None] = SimpleQueue()

    def block() -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            outcome.put(None)
        except OSError as error:
            outcome.put(error)

    # A daemon: after the deadline it must not keep the process from ending.
    threading.Thread(target=block, daemon=True).start()
    try:
        error = outcome.get(timeout=LONG_WAIT_S)
    except Empty:
        facts = {"file": str(file), "holder_pids": _holders(descriptor)}
        _log.warning("waiting for another process, which holds the lock %s", file.name, extra=facts)
        try:
            error = outcome.get(timeout=DEADLINE_S - LONG_WAIT_S)
        except Empty:
            raise StorageError(
                f"waited {DEADLINE_S:.0f} s for a lock that process {_holders(descriptor)} holds. "
                "It should hold it for much less; find out what it waits for, or end it: its lock "
                "is free then, and its work is done again",
                file=str(file),
            ) from None
    if error is not None:
        raise error


def _holders(descriptor: int) -> str:
    """Returns the ids of the processes that have a file locked, as Linux tells them."""
    try:
        lines = LOCKS_OF_THE_SYSTEM.read_text().splitlines()
    except OSError:  # sandboxes of containers lack it; for who waits, no file means no lock
        return "unknown"
    inode = os.fstat(descriptor).st_ino
    fields = [line.split() for line in lines]
    # Those who wait have an arrow in the second field.
    found = [each[4] for each in fields if each[1] != "->" and each[5].endswith(f":{inode}")]
    return ", ".join(found) or "unknown"
