"""A store that fails, delays, duplicates and reorders, in a directory that is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cairn.errors import CairnError, CorruptSegmentError, RefusedError, StorageError
from cairn.storage.store import LONGEST_WRITE_S
from tests.model.actors import current

LOST = "the connection was lost"


@dataclass
class Faults:
    """What becomes of the next requests of actors, and the writes that are under way.

    `put` is one of `PUTS`, for the next object that is put or copied, and `delete` one of
    `DELETES`; `commit`: the answer of a transaction is lost. Each is for one. `late` are writes
    that the store has and will show at any time, in any order, each with the time by the `clock`
    when it was sent.
    """

    clock: Callable[[], float]
    commit: bool = False
    put: str | None = None
    delete: str | None = None
    late: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    PUTS = ("is refused", "is lost", "lands, and the answer is lost", "lands late", "lands twice")
    DELETES = ("is lost", "is done, and the answer is lost", "fails for some")

    def __call__(self, name: str, request: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what is called instead of a request of a store."""
        if name in ("put", "copy"):
            return lambda store, path, pieces: self._write(request, store, path, pieces)
        if name == "delete_many":
            return lambda store, paths: self._delete(request, store, paths)
        return request

    def loses_an_answer(self) -> bool:
        """Tells whether a transaction is made that is made again, as nobody knows that it was."""
        return bool(self._taken("commit"))

    def end(self) -> None:
        """Lets nothing fail any more."""
        self.put, self.delete, self.commit = None, None, False
        self.late.clear()

    def land(self, which: int) -> None:
        """Lets one of the late writes land, if its name is not taken."""
        if self.late:
            _, write = self.late.pop(which % len(self.late))
            write()

    def before_time_passes(self, seconds: float, *, lands: bool) -> None:
        """Lets writes land, the last one first, or get lost, that may not be late by so much."""
        until_s = self.clock() + seconds
        for one in reversed(self.late):
            if until_s - one[0] > LONGEST_WRITE_S:
                self.late.remove(one)
                if lands:
                    one[1]()

    def _write(
        self, write: Callable[..., Any], store: Any, path: str, pieces: Sequence[Any]
    ) -> Any:
        fault = self._taken("put")
        # What is copied is read when it lands, and may be gone by then.
        kept = [bytes(one) if isinstance(one, memoryview) else one for one in pieces]

        def late() -> None:
            with suppress(RefusedError, StorageError):  # nothing is ever overwritten
                write(store, path, kept)

        if fault == "is lost":
            raise StorageError(LOST, file=path)
        if fault == "is refused":
            raise StorageError("the store is busy", file=path)
        if fault == "lands late":
            self.late.append((self.clock(), late))
            raise StorageError(LOST, file=path)
        answer = write(store, path, kept)
        if fault == "lands twice":
            self.late.append((self.clock(), late))
        elif fault is not None:
            raise StorageError(LOST, file=path)
        return answer

    def _delete(
        self, delete: Callable[..., Any], store: Any, paths: Sequence[str]
    ) -> dict[str, str]:
        fault = self._taken("delete")
        if fault == "is lost":
            raise StorageError(LOST)
        if fault == "fails for some":
            failed: dict[str, str] = delete(store, paths[1:])
            return {**failed, **dict.fromkeys(paths[:1], "access denied")}
        answer: dict[str, str] = delete(store, paths)
        if fault is not None:
            raise StorageError(LOST)
        return answer

    def _taken(self, name: str) -> Any:
        # Whoever is no actor only looks.
        if current() is None:
            return None
        fault = getattr(self, name)
        setattr(self, name, None)
        return fault


def is_expected(error: BaseException | None) -> bool:
    """Tells whether an actor may end so: it was told the truth, and says so in Cairn's words."""
    is_told = isinstance(error, CairnError) and not isinstance(error, CorruptSegmentError)
    return error is None or is_told
