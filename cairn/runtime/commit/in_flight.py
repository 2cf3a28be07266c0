"""How much of an executor's uploads may be in flight at once; later ones wait (FLIP-158).

Each upload has a claim: a file named after its bytes, locked by its process for as long as it
lasts. The lock dies with its process, so a claim whose lock is free is a dead one's: it is removed.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cairn.locks import Wait, is_free, lock
from cairn.runtime.executor.private_files import make_private
from cairn.runtime.executor.task_manager import TaskManager, fenced_if_removed


@dataclass(frozen=True, slots=True)
class Waited:
    """How many uploads were under way when this one asked to begin, and how long it waited."""

    others: int
    wait_ms: int


@contextmanager
def in_flight(manager: TaskManager, pool: str, size_bytes: int) -> Iterator[Waited]:
    """Holds a share of what the executor may have in flight in a pool; waits for room for it.

    Room are `cairn.changelog.dstl.upload.max-in-flight` bytes and `…num-threads` uploads. An
    upload that is larger than the limit gets all of it. First in, first out.

    Raises:
        FencedError: a newer run has removed the directory.
        StorageError: there was no room for `locks.DEADLINE_S`.
    """
    settings = manager.run.settings
    name = f"in-flight-{pool}"
    directory = manager.directory / name
    claim = directory / f"{size_bytes}-{uuid.uuid4()}"
    # The lock is held while waiting, so that a large upload is not passed by small ones for ever.
    with ExitStack() as held:
        began_s = time.monotonic()
        with manager.lock(name):
            with fenced_if_removed(directory):
                make_private(directory)
            claimed = _claimed(directory)
            others = len(claimed)
            room = Wait(f"room for an upload of {size_bytes} bytes", directory)
            # With nothing in flight there is room for any upload, however large.
            while claimed and (
                len(claimed) >= settings.upload_threads
                or sum(claimed) + size_bytes > settings.upload_in_flight_bytes
            ):
                room.pause()
                claimed = _claimed(directory)
            with fenced_if_removed(claim):
                # While the queue's lock is held: the next in line has to count this one.
                held.enter_context(lock(claim))
        held.callback(claim.unlink, missing_ok=True)
        yield Waited(others, round((time.monotonic() - began_s) * 1000))


def _claimed(directory: Path) -> list[int]:
    """Returns the bytes of each upload under way; removes the claims of dead processes."""
    with fenced_if_removed(directory):
        names = os.listdir(directory)
    return [int(name.split("-")[0]) for name in names if not _is_over(directory / name)]


def _is_over(claim: Path) -> bool:
    """Tells whether an upload has ended; removes the claim of one whose process died."""
    if not is_free(claim):
        return False
    claim.unlink(missing_ok=True)
    return True
