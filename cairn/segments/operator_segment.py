"""The bytes of a subtask's operator lists: a segment whose entries are their elements.

Each element is a PUT under `key group 0 | state id | no grouping key | position (8)`, as an element
of a list is. The key group says nothing: operator lists belong to no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cairn.errors import CorruptSegmentError
from cairn.handles import SegmentHandle
from cairn.segments import format as segment_format
from cairn.segments.reader import corrupt, read_segment
from cairn.state.entries import entry_prefix, list_suffix, split
from cairn.state.operator_lists import Lists
from cairn.state.view import PUT, Changes
from cairn.storage.store import ObjectStore


def encode(lists: Lists, *, metadata: Mapping[str, str]) -> bytes:
    """Returns the segment of a subtask's lists; `metadata` as of `cairn.segments.format.encode`."""
    keys, values = list[bytes](), list[bytes | None]()
    for state_id in sorted(lists):
        prefix, elements = entry_prefix(0, state_id, b""), lists[state_id]
        keys += [prefix + list_suffix(position) for position in range(len(elements))]
        values += elements
    return segment_format.encode(Changes([PUT] * len(keys), keys, values), metadata=metadata)


def decode(data: bytes) -> Lists:
    """Returns the lists in a segment.

    Raises:
        CorruptSegmentError: the bytes are no segment, or one of something else.
    """
    return _lists_of(segment_format.decode(data))


def read_lists(store: ObjectStore, handle: SegmentHandle, *, job: str) -> Lists:
    """Returns the lists in a segment in storage.

    Raises:
        CorruptSegmentError: the bytes are not those that were recorded, or no operator lists.
        StorageError: the object is missing or cannot be read.
    """
    batches = [*read_segment(store, handle, job=job)]
    try:
        return _lists_of(batches)
    except CorruptSegmentError as error:
        raise corrupt(job, handle, f"segment {handle.segment_id}: {error.message}") from error


def _lists_of(batches: Iterable[Changes]) -> Lists:
    lists: Lists = {}
    for batch in batches:
        for op, key, value in zip(batch.ops, batch.keys, batch.values, strict=True):
            try:
                group, state_id, grouping_key, suffix = split(key)
            except ValueError as error:
                raise CorruptSegmentError(f"it holds no operator lists: {error}") from error
            elements = lists.setdefault(state_id, [])
            # By position: an element that is missing or doubled is found here.
            expected = (PUT, 0, b"", list_suffix(len(elements)))
            if (op, group, grouping_key, suffix) != expected or value is None:
                raise CorruptSegmentError(
                    f"it holds no operator lists: element {len(elements)} of state {state_id} is "
                    "something else"
                )
            elements.append(value)
    return lists
