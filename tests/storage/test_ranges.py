"""Which parts of an upload make up ranges of objects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import groupby

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cairn.errors import CorruptSegmentError
from cairn.storage import ranges
from cairn.storage.ranges import ByteRange, plan_parts

LEAST, MOST = 10, 35


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "LEAST_PART_BYTES", LEAST)
        patch.setattr(ranges, "MOST_PART_BYTES", MOST)
        yield


some_range = st.builds(
    lambda path, offset, size_bytes: ByteRange(path=path, offset=offset, size_bytes=size_bytes),
    st.sampled_from("ab"),
    st.integers(0, 40),
    st.integers(0, 80),
)


def places(of: list[ByteRange] | tuple[ByteRange, ...]) -> list[tuple[str, int]]:
    return [(one.path, one.offset + n) for one in of for n in range(one.size_bytes)]


@given(st.lists(some_range, max_size=12))
@example(
    [ByteRange(path="a", offset=0, size_bytes=4), ByteRange(path="b", offset=0, size_bytes=16)]
)
@example([ByteRange(path="a", offset=5 * n, size_bytes=5) for n in range(4)])
@example([ByteRange(path=p, offset=0, size_bytes=n) for p, n in (("a", 4), ("b", 3), ("a", 20))])
def test_parts_are_the_bytes_in_order_and_none_but_the_last_is_too_small(
    wanted: list[ByteRange],
) -> None:
    parts = plan_parts(wanted)
    assert [place for part in parts for place in places(part.ranges)] == places(wanted)
    assert all(part.size_bytes >= LEAST for part in parts[:-1])
    for part in parts:
        if part.is_copied:
            assert len(part.ranges) == 1
            assert LEAST <= part.size_bytes <= MOST
        else:
            # Bounded in memory: what fills it up, and less than a part beside.
            assert part.size_bytes < 2 * LEAST


@given(st.lists(some_range, max_size=12))
def test_what_follows_in_one_object_from_a_part_on_is_copied_but_for_what_fills_up(
    wanted: list[ByteRange],
) -> None:
    parts = plan_parts(wanted)
    read_bytes = sum(part.size_bytes for part in parts if not part.is_copied)
    small_bytes = 0
    for run in _neighbours([one for one in wanted if one.size_bytes]):
        size_bytes = sum(one.size_bytes for one in run)
        # Filled up to a part, with less than a part left over.
        small_bytes += (
            min(size_bytes, 2 * LEAST - 2) if small_bytes else size_bytes * (size_bytes < LEAST)
        )
    assert read_bytes <= small_bytes


def _neighbours(wanted: list[ByteRange]) -> list[list[ByteRange]]:
    numbers, number = [], 0
    for place, one in enumerate(wanted):
        before = wanted[place - 1] if place else None
        if before is None or (before.path, before.end) != (one.path, one.offset):
            number += 1
        numbers.append(number)
    pairs = groupby(zip(numbers, wanted, strict=True), key=lambda pair: pair[0])
    return [[one for _, one in group] for _, group in pairs]


def test_bytes_are_compared_with_their_checksum() -> None:
    data = b"twelve bytes"
    right = hashlib.sha256(data).hexdigest()
    one = ByteRange(path="job-1/a.seg", offset=3, size_bytes=12, sha256=right)
    one.check(data)
    with pytest.raises(CorruptSegmentError, match="SHA-256") as caught:
        one.check(data[:-1] + b"!")
    assert (caught.value.file, caught.value.offset) == ("job-1/a.seg", 3)
