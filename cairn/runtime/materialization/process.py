"""The process that materializes, and which of its threads may be kept waiting.

python -m cairn.runtime.materialization.process ALARM_S < start

Batches may wait for a lock that it holds, of a row in the metastore or of the local state. So the
thread that takes locks has the priority of a batch. It does little. What costs the processor much,
the imports, reading the state and encoding it, is done by another one, for which nobody waits.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from cairn.runtime.materialization.write import Compute

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


@contextmanager
def computing(
    threads: Mapping[bool, Executor], patience_s: int, is_patient: bool
) -> Iterator[Compute]:
    """Yields what computes for one order, in one of the threads; a patient one has a time limit."""
    # Starved, it would hold its lock and old pages for ever. SIGALRM kills; 0 is no alarm.
    signal.alarm(patience_s if is_patient else 0)
    yield partial(computed_in, threads[is_patient])
    signal.alarm(0)
    # In between, as nothing is collected on the way: it would look at every entry of the state
    # again and again, and find nothing.
    threads[is_patient].submit(gc.collect).result()


def main(alarm_s: int) -> None:
    """Carries out orders as the standard input says; see `cairn.runtime.materialization.serve`.

    With an alarm, the imports wait for an idle core, and after so many seconds it is killed.
    """
    signal.alarm(alarm_s)
    gc.disable()
    with ExitStack() as held:
        # A thread cannot leave its class again, so there is one of each; they start when needed.
        threads = {
            is_patient: held.enter_context(
                ThreadPoolExecutor(1, initializer=partial(stand_back, is_patient=is_patient))
            )
            for is_patient in (True, False)
        }
        # Even the imports: a second or two of CPU, which batches would feel at their own priority.
        threads[alarm_s > 0].submit(import_module, "cairn.runtime.materialization.serve").result()
        from cairn.runtime.materialization.serve import Start, serve  # noqa: PLC0415 - it is loaded now

        start = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Start)
        signal.alarm(0)
        gc.freeze()  # what is loaded stays, so collecting need not look at it
        serve(start, partial(computing, threads, start.patience_s))


if __name__ == "__main__":
    main(int(sys.argv[1]))
