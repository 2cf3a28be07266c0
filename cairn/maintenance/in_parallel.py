"""Reading many ranges at once, with a bounded number of results in memory."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")

_NOTICE_S = 0.2
"""How soon a reader notices that nobody wants its results any more."""


def in_parallel(
    read: Callable[[A], Iterable[R]], parts: Sequence[A], *, threads: int
) -> Iterator[R]:
    """Yields the results of all parts, those of a part in order; up to `threads` are read at once.

    As many results wait to be taken at most. The first error of a part ends it, and is raised.
    """
    results: queue.Queue[R] = queue.Queue(threads)
    ended = threading.Event()

    def read_part(part: A) -> None:
        for result in () if ended.is_set() else read(part):
            while not ended.is_set():
                with suppress(queue.Full):
                    results.put(result, timeout=_NOTICE_S)
                    break
            if ended.is_set():
                return

    with ThreadPoolExecutor(threads) as pool:
        work = [pool.submit(read_part, part) for part in parts]
        try:
            while True:
                is_over = all(one.done() for one in work)
                failed = next((one for one in work if one.done() and one.exception()), None)
                if failed is not None:
                    failed.result()
                with suppress(queue.Empty):
                    yield results.get(timeout=0 if is_over else _NOTICE_S / 10)
                    continue
                if is_over:
                    return
        finally:
            ended.set()
            for one in work:
                one.cancel()
