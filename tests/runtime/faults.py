"""A store whose write fails, and a metastore whose connection breaks, at the edge of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event

from cairn.errors import StorageError
from cairn.storage import ObjectStore
from tests.runtime.sent import watch


class FailingStore:
    """A store whose first write fails, before or after its bytes have landed."""

    def __init__(self, store: ObjectStore, *, lands: bool) -> None:
        self._store = store
        self._lands = lands
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, path: str, chunks: Sequence[bytes | memoryview]) -> None:
        self._fail(path, lambda: self._store.put(path, chunks))

    def append(self, path: str, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        self._fail(path, lambda: self._store.append(path, offset, chunks))

    def _fail(self, path: str, write: Callable[[], None]) -> None:
        fails = not self.failed
        if self._lands or not fails:
            write()  # one that the store refuses has not failed: another one comes in its place
        self.failed = True
        if fails:
            raise StorageError("the connection was lost", file=path)


@contextmanager
def losing_a_connection(number: int, *, commits: bool) -> Iterator[None]:
    """Breaks the connection of the nth transaction as it commits: after the server's commit or not.

    Whoever commits learns nothing of the difference.
    """
    left, is_counted = number, False

    def note(session: Any, _statement: str, is_transaction: bool) -> None:
        nonlocal left, is_counted
        is_counted = is_transaction
        left -= is_transaction
        if is_transaction and left == 0 and not commits:
            session.close()

    def lose(connection: Connection) -> None:
        nonlocal left, is_counted
        left -= not is_counted
        if left == 0:
            session = connection.connection.dbapi_connection
            assert session is not None
            if commits:
                session.commit()
            session.close()
            left -= 1
        is_counted = False

    event.listen(Engine, "commit", lose)
    end = watch(note)
    try:
        yield
    finally:
        end()
        event.remove(Engine, "commit", lose)
