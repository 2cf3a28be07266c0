"""A materialising process that kills itself: python -m tests.runtime.dying_materializer KILL_AT

`KILL_AT` is "before" or "after", and what: start, intent, put, install or end.
"""

from __future__ import annotations

import sys

import msgspec

from cairn.runtime import materializer
from cairn.runtime.materializer import Order, carry_out
from cairn.storage import ObjectStore, open_store
from tests.runtime.one_task import DyingStore, die_at_transaction

MARKS = {
    "start": "INSERT INTO cairn.materializations",
    "intent": "INSERT INTO cairn.physical_files",
    "install": "INSERT INTO cairn.segments",
    "end": "UPDATE cairn.materializations",
}
STEPS = [f"{when} {what}" for what in (*MARKS, "put") for when in ("before", "after")]


def main(kill_at: str) -> None:
    """Carries out the order on the standard input until it dies."""
    when, what = kill_at.split()

    def dying_store(url: str) -> ObjectStore:
        return DyingStore(open_store(url), when, what)

    if what == "put":
        materializer.open_store = dying_store  # type: ignore[attr-defined]
    else:
        die_at_transaction(when, MARKS[what])
    carry_out(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order))


if __name__ == "__main__":
    main(sys.argv[1])
