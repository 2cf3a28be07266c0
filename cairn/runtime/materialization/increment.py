"""The net changes since a base: the result of some changelog, without overwritten values.

An increment holds, for every entry that the changelog touches, the value that it has in a snapshot
taken after it, or its deletion. So it may replace any part of that changelog.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator

from cairn.runtime.executor.local_store import LocalReader
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes

_Change = tuple[int, bytes, bytes | None]


def touched_by(changes: Iterable[Changes]) -> dict[int, set[tuple[bytes, bool]]]:
    """Returns, by key group, the keys that changes touch; with True, a prefix they delete."""
    touched: dict[int, set[tuple[bytes, bool]]] = {}
    for batch in changes:
        for op, key in zip(batch.ops, batch.keys, strict=True):
            of_group = touched.setdefault(int.from_bytes(key[:2], "big"), set())
            of_group.add((key, op == DELETE_PREFIX))
    return touched


def net_changes(reader: LocalReader, touched: Collection[tuple[bytes, bool]]) -> Changes:
    """Returns what brings any older state of the touched entries to that of the snapshot, by key.

    A deleted prefix is followed by all entries that the snapshot has under it.
    """
    # A prefix before the keys under it: after them it would delete them again.
    rows = sorted(_net_changes(reader, touched), key=lambda row: (row[1], row[0] != DELETE_PREFIX))
    return Changes(*map(list, zip(*rows, strict=True))) if rows else Changes([], [], [])


def _net_changes(reader: LocalReader, touched: Collection[tuple[bytes, bool]]) -> Iterator[_Change]:
    prefixes = _outermost(key for key, is_prefix in touched if is_prefix)
    for prefix in prefixes:
        yield DELETE_PREFIX, prefix, None
        for key, value in reader.scan(prefix):
            yield PUT, key, value
    for key, is_prefix in touched:
        if not is_prefix and not _is_under(prefixes, key):
            found = reader.get(key)
            # A key that is gone is deleted once more: the base below may have it.
            yield DELETE if found is None else PUT, key, found


def _outermost(prefixes: Iterable[bytes]) -> list[bytes]:
    """Returns, sorted, those that start with no other one."""
    kept: list[bytes] = []
    for prefix in sorted(prefixes):
        if not (kept and prefix.startswith(kept[-1])):
            kept.append(prefix)
    return kept


def _is_under(prefixes: list[bytes], key: bytes) -> bool:
    """Tells whether a key starts with one of the outermost prefixes, which are sorted.

    Whatever sorts between a prefix and a key that starts with it starts with it, too; so only the
    last one before the key can be it.
    """
    place = bisect.bisect_right(prefixes, key)
    return place > 0 and key.startswith(prefixes[place - 1])
