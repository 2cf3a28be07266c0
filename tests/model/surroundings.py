"""What surrounds the processes of the model: clocks, threads and heartbeats that it plays itself.

So nothing happens by itself: an actor does the work of its pools, time passes when the model says
so, and a lease is renewed in a step of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.catalog.maintenance.leased_files import LeaseRef
from cairn.catalog.maintenance.leases import renew_lease
from cairn.errors import FencedError
from cairn.maintenance import copies, deleter, find_orphans, fold, held_lease, leased_files
from cairn.savepoints import start_from_manifest, write_manifest
from cairn.segments import base_rows, reader
from cairn.storage import posix_inventory, store
from cairn.storage.posix_inventory import PosixInventory
from tests.model.actors import current

BEAT_S = 30.0
"""How often a lease is renewed by whoever works; it is good for twice as long."""
_POOLS = (copies, deleter, fold, start_from_manifest, base_rows, reader)
_MONOTONIC = (leased_files, start_from_manifest, write_manifest, store)
_NO_BREAKERS = {"CAIRN_MIN_MATCH_RATE": "0", "CAIRN_MAX_DELETED_SHARE": "100"}
"""Circuit breakers speak at jobs as small as these."""


@dataclass
class Hearts:
    """The leases that are renewed by processes which are alive, or seem to be."""

    beating: list[_Heart] = field(default_factory=list)

    def thread(
        self, *, target: object, args: tuple[Catalog, LeaseRef, int, object], daemon: bool
    ) -> _Heart:
        """Returns what stands for the thread that renews a lease."""
        return _Heart(self, args[0], args[1].run_id, args[1].holder)

    def beat(self) -> None:
        """Renews all leases; one that was lost is not renewed any more."""
        for heart in list(self.beating):
            try:
                heart.beat()
            except FencedError:
                heart.join()


@dataclass(eq=False)
class _Heart:
    hearts: Hearts
    catalog: Catalog
    run_id: UUID
    holder: UUID

    def start(self) -> None:
        self.hearts.beating.append(self)

    def join(self) -> None:
        if self in self.hearts.beating:
            self.hearts.beating.remove(self)

    def beat(self) -> None:
        self.catalog.run("renewing", lambda c: renew_lease(c, self.run_id, self.holder))


class InLine:
    """Stands for a pool of threads: who gives it work does it at once, and is killed in it."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __enter__(self) -> InLine:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def shutdown(self, **_: object) -> None:
        """Nothing is under way."""

    def submit(self, work: Callable[..., Any], *values: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*values, **named))
        except Exception as error:  # noqa: BLE001 - a pool keeps every error of its work
            done.set_exception(error)
        return done

    def map(self, work: Callable[..., Any], values: Iterable[Any]) -> Iterator[Any]:
        return map(work, list(values))


def _in_line(
    read: Callable[[Any], Iterable[Any]], parts: Sequence[Any], *, threads: int
) -> Iterator[Any]:
    for part in parts:
        yield from read(part)


@contextmanager
def played(
    clock: Callable[[], float], seen_at: Callable[[datetime], datetime], hearts: Hearts
) -> Iterator[None]:
    """Plays clocks, pools and heartbeats, while the context lasts.

    `clock` is the time that has passed, in seconds; `seen_at` says when a file was made by the
    clock of its server. The clock of an actor's machine is as wrong as the actor says.
    """
    real_s, later, now = time.time, posix_inventory._later, PosixInventory.now
    monotonic = SimpleNamespace(monotonic=clock, sleep=lambda _: None)
    beats = SimpleNamespace(Thread=hearts.thread, Event=threading.Event)

    def wall_s() -> float:
        actor = current()
        return real_s() + (actor.skew_s if actor else 0.0)

    with ExitStack() as held:
        for module in _POOLS:
            held.enter_context(patch.object(module, "ThreadPoolExecutor", InLine))
        for module in _MONOTONIC:
            held.enter_context(patch.object(module, "time", monotonic))
        held.enter_context(patch.object(find_orphans, "in_parallel", _in_line))
        held.enter_context(patch.object(held_lease, "threading", beats))
        held.enter_context(patch.object(time, "time", wall_s))
        held.enter_context(patch.object(posix_inventory, "_later", lambda of: seen_at(later(of))))
        held.enter_context(patch.object(PosixInventory, "now", lambda self: seen_at(now(self))))
        held.enter_context(patch.dict(os.environ, _NO_BREAKERS))
        yield
