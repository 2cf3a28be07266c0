"""Fuzzes the readers of bytes, and processors on both engines, for a time or a number of cases.

python -m tests.fuzz [--minutes M | --cases N] [--first NUMBER] [READER … | processors]

Each chunk of bytes is run in a process of its own, so that a crash is one more way to end. The exit
status is 1 if a case ends in another way than it should; `--first NUMBER --cases 1 NAME` runs it
again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection

from tests.fuzz.cases import Ends, run_cases
from tests.fuzz.readers import READERS

CHUNK = 2_000
MEMORY_BYTES = 4 << 30
PROCESSORS = "processors"


def main() -> int:
    """Runs the cases, prints how they ended and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="half of it for the processors")
    parser.add_argument("--cases", type=int, help="of each, however long they take")
    parser.add_argument(
        "--first", type=int, help="number of the first case; at random if not given"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*READERS, PROCESSORS]))
    arguments = parser.parse_args()
    names = arguments.names or [*READERS, PROCESSORS]
    first = random.randrange(2**40) if arguments.first is None else arguments.first
    readers = [name for name in names if name != PROCESSORS]
    share = 0.5 if readers and len(readers) < len(names) else 1
    seconds = arguments.minutes * 60 * share / max(1, len(readers))
    status = 0
    for name in readers:
        started = time.monotonic()
        ends, count = Ends(), 0
        while count < arguments.cases if arguments.cases else time.monotonic() < started + seconds:
            size = min(CHUNK, arguments.cases - count) if arguments.cases else CHUNK
            _add(ends, _in_a_process(name, first + count, size))
            count += size
        took_s = time.monotonic() - started
        print(f"{name}: {count} cases from {first} in {took_s:.0f} s: {_shown(ends.counts)}")
        for what, number in ends.surprises.items():
            print(f"    case {number}: {what}")
            status = 1
        sys.stdout.flush()
    if PROCESSORS in names:
        from tests.fuzz.compare import compare  # starts a JVM

        status |= compare(arguments.cases, arguments.minutes * 60 * share, first)
    return status


def _in_a_process(name: str, first: int, count: int) -> Ends:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=_chunk, args=(theirs, name, first, count))
    process.start()
    theirs.close()
    try:
        ends: Ends = ours.recv()
    except EOFError:
        process.join()
        died = f"died with {process.exitcode} in one of {count} cases from here"
        return Ends(Counter({died: 1}), {died: first})
    process.join()
    return ends


def _chunk(pipe: Connection, name: str, first: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    pipe.send(run_cases(READERS[name], first, count))


def _add(ends: Ends, more: Ends) -> None:
    ends.counts.update(more.counts)
    ends.surprises = {**more.surprises, **ends.surprises}


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.most_common(3))


if __name__ == "__main__":
    sys.exit(main())
