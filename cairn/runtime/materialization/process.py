"""The process that materializes a subtask, and which of its threads may be kept waiting.

python -m cairn.runtime.materialization.process PATIENCE_S < order

Batches may wait for a lock that it holds, of a row in the metastore or of the local state. So the
thread that takes locks has the priority of a batch. It does little. What costs the processor much,
the imports, reading the state and encoding it, is done by another one, for which nobody waits.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import TypeVar

import msgspec

T = TypeVar("T")


def stand_back(*, is_patient: bool) -> None:
    """Lets the calling thread run when no other wants the core, or with a small share of it."""
    if is_patient:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(10)  # of the thread, on Linux


def computed_in(thread: Executor, items: Iterator[T]) -> Iterator[T]:
    """Yields the items, none of them None; only the thread runs the code that makes them."""
    while (item := thread.submit(next, items, None).result()) is not None:
        yield item


def main(patience_s: int) -> None:
    """Carries out the order on the standard input.

    With patience, only when no other thread wants a core, and after so many seconds it is killed.
    With none, at a lower priority than batches.
    """
    # Starved, it would hold its lock and old pages for ever. SIGALRM kills; 0 is no alarm.
    signal.alarm(patience_s)
    gc.disable()  # it would look at every entry of the state again and again, and find nothing
    yielding = partial(stand_back, is_patient=patience_s > 0)
    with ThreadPoolExecutor(1, initializer=yielding) as thread:
        # Even the imports: a second or two of CPU, which batches would feel at their own priority.
        thread.submit(import_module, "cairn.runtime.materialization.order").result()
        from cairn.runtime.materialization.order import Order, carry_out  # noqa: PLC0415 - it is loaded now

        order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)
        carry_out(order, partial(computed_in, thread))


if __name__ == "__main__":
    main(int(sys.argv[1]))
