"""The state of a checkpoint in some key groups, folded from its segments."""

from __future__ import annotations

from collections.abc import Iterable

from cairn.errors import CorruptSegmentError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.segments.reader import read_segment
from cairn.state.entries import STATE_HEAD_BYTES, split
from cairn.state.view import DELETE_PREFIX, PUT, Changes
from cairn.storage.store import ObjectStore
from metastore.enums import KEYED, SegmentKind


def snapshot(
    store: ObjectStore, handles: Iterable[SegmentHandle], key_groups: KeyGroupRange, *, job: str
) -> dict[bytes, bytes]:
    """Returns every entry of keyed state in the key groups by its key, in key order.

    `handles` are a checkpoint's segments in order of replay: by `as_of_checkpoint`, a changelog
    before a base. A base replaces its key groups whole, a changelog changes them. Those outside
    the key groups, and those of no keyed state, are not read. The whole result is in memory: ask
    for one subtask's key groups at a time.

    Raises:
        CorruptSegmentError: a segment's bytes are not those that were recorded.
        StorageError: an object is missing or cannot be read.
    """
    folded = _Fold()
    for handle in handles:
        wanted = handle.key_groups.intersect(key_groups)
        if not wanted or handle.kind not in KEYED:
            continue
        # Before its rows: a base replaces its key groups, whatever is older in them.
        if handle.kind is SegmentKind.KEYED_FULL:
            folded.clear(wanted)
        for changes in read_segment(store, handle, job=job, key_groups=wanted):
            try:
                folded.apply(changes)
            except ValueError as error:
                # Right bytes of something else: the metastore names the wrong segment.
                raise CorruptSegmentError(
                    f"segment {handle.segment_id} holds something else than state: {error}",
                    job=job,
                    checkpoint=handle.first_checkpoint,
                    file=handle.path,
                    offset=handle.offset,
                ) from error
    return folded.entries()


class _Fold:
    """Entries by state in a key group, then by collection: the prefix of a grouping key in it."""

    def __init__(self) -> None:
        self._states: dict[bytes, dict[bytes, dict[bytes, bytes]]] = {}

    def clear(self, key_groups: KeyGroupRange) -> None:
        self._states = {
            head: collections
            for head, collections in self._states.items()
            if int.from_bytes(head[:2], "big") not in key_groups
        }

    def apply(self, changes: Changes) -> None:
        for op, key, value in zip(changes.ops, changes.keys, changes.values, strict=True):
            head = key[:STATE_HEAD_BYTES]
            if op == DELETE_PREFIX and len(key) == STATE_HEAD_BYTES:
                # All of one state in a key group, which was dropped.
                self._states.pop(head, None)
                continue
            suffix = split(key).suffix
            prefix = key[: len(key) - len(suffix)]
            collection = self._states.setdefault(head, {}).setdefault(prefix, {})
            if op == PUT and value is not None:
                collection[suffix] = value
            elif op == DELETE_PREFIX and not suffix:
                collection.clear()
            elif op == DELETE_PREFIX:
                # A list, as the collection changes under the loop.
                for gone in [s for s in collection if s.startswith(suffix)]:
                    del collection[gone]
            else:
                collection.pop(suffix, None)

    def entries(self) -> dict[bytes, bytes]:
        return {
            prefix + suffix: value
            for _, collections in sorted(self._states.items())
            for prefix, collection in sorted(collections.items())
            for suffix, value in sorted(collection.items())
        }
