"""Runs cases of a reader in this process, and counts how they end."""

from __future__ import annotations

import resource
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from cairn.errors import CorruptSegmentError, RefusedError
from tests.fuzz.readers import Reader

SLOW_S = 5
"""A case that takes longer hangs: what is read has a few kilobytes."""
EXPECTED = (CorruptSegmentError, RefusedError)


@dataclass
class Ends:
    """How cases ended: how often each way, and the first case of each that should not be."""

    counts: Counter[str] = field(default_factory=Counter)
    surprises: dict[str, int] = field(default_factory=dict)


class _HangsError(Exception):
    pass


def run_cases(reader: Reader, first: int, count: int) -> Ends:
    """Returns how cases of these numbers end."""
    ends = Ends()
    for number in range(first, first + count):
        data = reader.case(number)
        before_kb = _peak_kb()
        found = how_it_ends(reader, data)
        if found.startswith("read") or found.partition(" ")[0] in ("refused", "corrupt"):
            grown_kb = _peak_kb() - before_kb
            if grown_kb > 64 << 10:
                found = f"memory: {grown_kb >> 10} MB for {len(data)} bytes"
        ends.counts[found] += 1
        if found not in ("read", "refused", "corrupt"):
            ends.surprises.setdefault(found, number)
    return ends


def how_it_ends(reader: Reader, data: bytes) -> str:
    """Returns "read", "corrupt" or "refused", or what should not be."""
    try:
        with _alarm():
            reader.read(data)
    except CorruptSegmentError:
        return "corrupt"
    except RefusedError:
        return "refused"
    except _HangsError:
        return f"hangs for {SLOW_S} s"
    except Exception as error:  # noqa: BLE001 - any other is what is looked for
        return f"{type(error).__module__}.{type(error).__name__}: {error!s:.80}"
    return "read"


@contextmanager
def _alarm() -> Iterator[None]:
    def hangs(_number: int, _frame: FrameType | None) -> None:
        raise _HangsError

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, SLOW_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
