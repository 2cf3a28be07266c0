"""A writer of local state in a process of its own: `DIRECTORY hold|count N`.

`hold` writes an entry for each number below N and a position, says so, and waits to be killed
before it commits. `count` adds one to the entry `COUNT`, N times, a transaction each.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from cairn.runtime.executor.local_store import Position, open_local
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


def main(directory: str, what: str, number: str) -> None:
    """Runs one of the two."""
    {"hold": hold, "count": count_up}[what](Path(directory), int(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
