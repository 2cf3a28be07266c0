"""A store that fails, delays, duplicates and reorders, in a directory that is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cairn.errors import CairnError, RefusedError, StorageError
from tests.model.actors import current

LOST = "the connection was lost"


@dataclass
class Faults:
    """What becomes of the next requests of actors, and the writes that are under way.

    `put` is one of `PUTS` and `delete` one of `DELETES`; each is for one request. `late` are writes
    that the store has and will show at any time, in any order.
    """

    put: str | None = None
    delete: str | None = None
    late: list[Callable[[], None]] = field(default_factory=list)

    PUTS = ("is refused", "is lost", "lands, and the answer is lost", "lands late", "lands twice")
    DELETES = ("is lost", "is done, and the answer is lost", "fails for some")

    def __call__(self, name: str, request: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what is called instead of a request of a store."""
        if name == "put":
            return lambda store, path, chunks: self._put(request, store, path, chunks)
        if name == "delete_many":
            return lambda store, paths: self._delete(request, store, paths)
        return request

    def land(self, which: int) -> None:
        """Lets one of the late writes land, if its name is not taken."""
        if self.late:
            self.late.pop(which % len(self.late))()

    def land_all(self) -> None:
        """Lets all late writes land, the last one first."""
        while self.late:
            self.land(-1)

    def _put(
        self, put: Callable[..., Any], store: Any, path: str, chunks: Sequence[bytes | memoryview]
    ) -> None:
        fault = self._taken("put")
        kept = [bytes(chunk) for chunk in chunks]

        def late() -> None:
            with suppress(RefusedError):  # its name is taken: nothing is ever overwritten
                put(store, path, kept)

        if fault == "is lost":
            raise StorageError(LOST, file=path)
        if fault == "is refused":
            raise StorageError("the store is busy", file=path)
        if fault == "lands late":
            self.late.append(late)
            raise StorageError(LOST, file=path)
        put(store, path, kept)
        if fault == "lands twice":
            self.late.append(late)
        elif fault is not None:
            raise StorageError(LOST, file=path)

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

    def _taken(self, name: str) -> str | None:
        # Whoever is no actor only looks.
        if current() is None:
            return None
        fault: str | None = getattr(self, name)
        setattr(self, name, None)
        return fault


def is_expected(error: BaseException | None) -> bool:
    """Tells whether an actor may end so: it was told the truth, and says so in Cairn's words."""
    return error is None or isinstance(error, CairnError)
