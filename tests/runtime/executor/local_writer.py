"""A writer of local state in a process of its own: `DIRECTORY hold|count|damage|grow N`.

`hold` writes an entry for each number below N and a position, says so, and waits to be killed
before it commits. `count` adds one to the entry `COUNT`, N times, a transaction each. `damage`
finds the environment damaged. `grow` puts an entry of N bytes.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

from cairn.errors import DamagedStateError
from cairn.runtime.executor.local_record import Position
from cairn.runtime.executor.open_stores import open_local
from cairn.state.entries import entry_prefix
from cairn.state.view import PUT, Changes

COUNT = entry_prefix(0, 1, b"count")


def hold(directory: Path, number: int) -> None:
    """Writes and waits inside the transaction."""
    with open_local(directory).write() as writer:
        keys = [entry_prefix(1, 1, b"%d" % i) for i in range(number)]
        writer.apply(Changes([PUT] * number, keys, [b"uncommitted"] * number))
        writer.move_to(Position(99, "nobody", 99))
        print("holding", flush=True)
        time.sleep(60)


def count_up(directory: Path, number: int) -> None:
    """Adds one to the entry `count` in each of `number` transactions."""
    for _ in range(number):
        with open_local(directory).write() as writer:
            found = int(writer.reader.get(COUNT) or b"0")
            writer.apply(Changes([PUT], [COUNT], [b"%d" % (found + 1)]))
            writer.move_to(Position(found + 1, "counting", 1))


def find_damage(directory: Path, _: int) -> None:
    """Reads what is not what was written."""
    with suppress(DamagedStateError), open_local(directory).read() as reader:
        raise DamagedStateError(f"as {reader} says")


def grow(directory: Path, size_bytes: int) -> None:
    """Puts a large entry."""
    with open_local(directory).write() as writer:
        writer.apply(Changes([PUT], [COUNT], [bytes(size_bytes)]))


def main(directory: str, what: str, number: str) -> None:
    """Runs one of them."""
    work = {"hold": hold, "count": count_up, "damage": find_damage, "grow": grow}
    work[what](Path(directory), int(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
