"""Processes of the model: real code that runs up to its next step, and only when it is told to.

Each actor is a thread that waits at a gate: before every transaction, and before every request to a
store. So any two pieces of real code are interleaved at every point at which another process sees a
difference, one step at a time and always in the same order. An actor that is left at a gate is a
process that was killed there; one that goes on later is a zombie.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol
from unittest.mock import patch

from cairn.catalog.catalog import Catalog
from cairn.errors import FencedError, StorageError
from cairn.storage.posix import PosixStore
from cairn.storage.store import LONGEST_WRITE_S
from tests.model.watch import Watch

_of_thread = threading.local()
_LONGEST_STEP_S = 60.0


class KilledError(BaseException):
    """Ends the thread of an actor at its gate; nothing that it would do is done any more."""


@dataclass(eq=False)
class Actor:
    """One process; `result` or `error` is what its work came to, `at` what it does next."""

    name: str
    work: Callable[[], Any]
    result: Any = None
    error: BaseException | None = None
    is_over: bool = False
    at: str = "start"
    steps: int = 0
    skew_s: float = 0.0
    """How far the clock of its machine is ahead of all others."""
    then: Callable[[Any], None] | None = None
    """What is told its result."""
    is_watched: bool = False
    """Whether each of its transactions that is fenced is compared with what was before."""
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _is_killed: bool = False
    _depth: int = 0
    _thread: threading.Thread | None = None

    def advance(self, steps: int = 1) -> None:
        """Lets it do its next steps, and returns when it is at a gate again, or over."""
        for _ in range(steps):
            if self.is_over:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self._thread.start()
            self.steps += 1
            self._go.release()
            assert self._stopped.acquire(timeout=_LONGEST_STEP_S), f"{self} waits for somebody"

    def run(self) -> Any:
        """Lets it do all that is left; returns its result, or raises its error."""
        while not self.is_over:
            self.advance()
        if self.error is not None:
            raise self.error
        return self.result

    def kill(self) -> None:
        """Ends it where it is, as SIGKILL does: no handler of its own changes anything any more."""
        if not self.is_over and self._thread is not None:
            self._is_killed = True
            self._go.release()
            self._thread.join(_LONGEST_STEP_S)
        self.is_over = True

    def gate(self, what: str) -> None:
        """Waits for its next step; within a transaction it goes on, as it holds locks."""
        if self._is_killed:
            raise KilledError
        if self._depth:
            return
        self.at = what
        self._stopped.release()
        self._go.acquire()
        if self._is_killed:
            raise KilledError

    @contextmanager
    def in_transaction(self) -> Iterator[None]:
        """Holds no gate while the context lasts."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _run(self) -> None:
        _of_thread.actor = self
        self._go.acquire()
        try:
            if not self._is_killed:
                self.result = self.work()
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001 - whoever looks at the actor judges it
            self.error = error
        self.is_over = True
        self._stopped.release()

    def __str__(self) -> str:
        return f"{self.name} at {self.at!r} after {self.steps} steps"


def current() -> Actor | None:
    """Returns the actor whose thread this is; None in all others."""
    return getattr(_of_thread, "actor", None)


REQUESTS = (
    "put",
    "copy",
    "append",
    "get",
    "list",
    "delete_many",
    "remove_directory",
    "remove_empty",
)
_WRITES = ("put", "copy", "append")


class Faulty(Protocol):
    """What becomes of requests and transactions."""

    def __call__(self, name: str, request: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what is called instead of a request by its name."""
        ...

    def loses_an_answer(self) -> bool:
        """Tells whether the next transaction is made twice."""
        ...


@contextmanager
def gates(faults: Faulty, clock: Callable[[], float], watch: Watch) -> Iterator[None]:
    """Puts a gate before every transaction and request of actors, while the context lasts.

    A write that was held for too
    long by the `clock`, in seconds, is not done, as the stores promise. The `watch` is told of
    each, whoever does it.
    """
    with ExitStack() as held:
        run, begin = Catalog._run, Catalog.begin
        held.enter_context(patch.object(Catalog, "_run", _gated_transaction(run, faults, watch)))
        held.enter_context(patch.object(Catalog, "begin", _gated_begin(begin, watch)))
        for name in REQUESTS:
            request = faults(name, _noted(getattr(PosixStore, name), watch))
            held.enter_context(patch.object(PosixStore, name, _gated(name, request, clock)))
        yield


def _noted(request: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    @wraps(request)
    def noted(*arguments: Any, **named: Any) -> Any:
        watch.requests += 1
        return request(*arguments, **named)

    return noted


def _gated(
    name: str, request: Callable[..., Any], clock: Callable[[], float]
) -> Callable[..., Any]:
    @wraps(request)
    def gated(store: PosixStore, *arguments: Any, **named: Any) -> Any:
        actor = current()
        if actor is not None:
            began_s = clock()
            actor.gate(f"{name} {arguments[0]}"[:80])
            if name in _WRITES and clock() - began_s > LONGEST_WRITE_S:
                raise StorageError("it took too long, so nothing was written")
        return request(store, *arguments, **named)

    return gated


def _gated_transaction(run: Callable[..., Any], faults: Faulty, watch: Watch) -> Callable[..., Any]:
    @wraps(run)
    def gated(catalog: Catalog, what: str, work: Callable[..., Any], *, each: bool) -> Any:
        actor = current()
        if actor is None:
            watch.transactions += 1
            return run(catalog, what, work, each=each)
        actor.gate(what)
        before = watch.rows() if actor.is_watched else None
        watch.transactions += 1
        with actor.in_transaction():
            try:
                if faults.loses_an_answer():
                    run(catalog, what, work, each=each)
                return run(catalog, what, work, each=each)
            except FencedError:
                assert before in (None, watch.rows()), f"{actor} was fenced and changed something"
                raise

    return gated


def _gated_begin(begin: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    @contextmanager
    def gated(catalog: Catalog) -> Iterator[Any]:
        actor = current()
        watch.transactions += 1
        if actor is None:
            with begin(catalog) as connection:
                yield connection
            return
        actor.gate("a transaction")
        with actor.in_transaction(), begin(catalog) as connection:
            yield connection

    return gated
