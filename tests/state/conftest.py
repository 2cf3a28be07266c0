from __future__ import annotations

from collections.abc import Iterator

import pytest

from cairn.state.view import DELETE, PUT, Changes


class DictState:
    """Committed state in a dict: a Reader that can also take changes."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.reads: list[str] = []
        self.scanned = 0
        """How many entries were taken from scans."""

    def get(self, key: bytes, /) -> bytes | None:
        self.reads.append("get")
        return self.entries.get(key)

    def scan(self, prefix: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        self.reads.append("scan")
        found = sorted(item for item in self.entries.items() if item[0].startswith(prefix))
        return map(self._count, found)

    def last(self, prefix: bytes, /) -> bytes | None:
        self.reads.append("last")
        return max((key for key in self.entries if key.startswith(prefix)), default=None)

    def _count(self, entry: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        self.scanned += 1
        return entry

    def apply(self, changes: Changes) -> None:
        for op, key, value in zip(changes.ops, changes.keys, changes.values, strict=True):
            if op == PUT:
                assert value is not None
                self.entries[key] = value
            elif op == DELETE:
                self.entries.pop(key, None)
            else:
                for entry in [entry for entry in self.entries if entry.startswith(key)]:
                    del self.entries[entry]


@pytest.fixture
def committed() -> DictState:
    return DictState()


@pytest.fixture(scope="session")
def make_committed() -> type[DictState]:
    return DictState
