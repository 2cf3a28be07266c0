"""Operator state: lists that belong to a subtask and to no key (Flink's OperatorStateStore).

A subtask has all of its elements in memory. They are in the checkpoint whole, so what a batch does
to them needs no overlay: it works on a copy that counts once the batch is acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from cairn.keygroups import range_of
from cairn.state.codec import TupleCodec

Lists = dict[int, list[bytes]]
"""The encoded elements of a subtask's operator lists in order, by state id."""


class OperatorListState:
    """A list of tuples of one subtask, with the methods of list state.

    Changes are made to `elements`.
    """

    __slots__ = ("_decode", "_elements", "_encode")

    def __init__(self, elements: list[bytes], codec: TupleCodec) -> None:
        self._elements = elements
        self._encode = codec.encode
        self._decode = codec.decode

    def exists(self) -> bool:
        """Tells whether there is any element; `(None,)` is one."""
        return bool(self._elements)

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Returns an iterator of the elements in order, as of this call."""
        # A copy: the processor may append while it reads.
        return map(self._decode, [*self._elements])

    def put(self, newState: Iterable[tuple[Any, ...]]) -> None:
        """Replaces the list. An empty one clears it.

        Raises:
            BadInputError: an element does not fit the schema; nothing was changed.
        """
        # Encoded first: an element that does not fit leaves the list as it was.
        self._elements[:] = [*map(self._encode, newState)]

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Adds an element at the end.

        Raises:
            BadInputError: it does not fit the schema; nothing was changed.
            TypeError: it is None.
        """
        self._elements.append(self._encode(newState))

    def appendList(self, newState: Iterable[tuple[Any, ...]]) -> None:
        """Adds elements at the end.

        Raises:
            BadInputError: an element does not fit the schema; nothing was changed.
        """
        self._elements += [*map(self._encode, newState)]

    def clear(self) -> None:
        """Removes all elements."""
        self._elements.clear()


def redistribute(
    before: Mapping[int, Lists],
    parallelism_before: int,
    *,
    subtask: int,
    parallelism: int,
    split: Collection[int],
    union: Collection[int],
) -> Lists:
    """Returns what a subtask starts a run with, of the lists that subtasks had `before`.

    `split` and `union` are the ids of the lists that are kept; others are left out. Of a split
    list, all elements in order of subtask and position are cut into one part for each new subtask,
    whose lengths differ by one at most; at the same parallelism each subtask keeps its own. Of a
    union list, every subtask gets all elements in that order. (Flink's
    RoundRobinOperatorStateRepartitioner; its SPLIT_DISTRIBUTE and UNION.)
    """
    lists = {state_id: _together(before, state_id) for state_id in union}
    for state_id in split:
        # Its own, as nothing has moved: a split by length would move elements about.
        if parallelism == parallelism_before:
            lists[state_id] = [*before.get(subtask, {}).get(state_id, ())]
        else:
            elements = _together(before, state_id)
            part = range_of(subtask, parallelism, len(elements))
            lists[state_id] = elements[part.start : part.end]
    # Without the empty ones: they would have a segment in every checkpoint.
    return {state_id: elements for state_id, elements in lists.items() if elements}


def _together(before: Mapping[int, Lists], state_id: int) -> list[bytes]:
    return [e for subtask in sorted(before) for e in before[subtask].get(state_id, ())]
