"""What an owner object means to a metastore, and the bytes of one: without any store."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.errors import CorruptSegmentError, RefusedError
from cairn.layout import generation_of, owner_file
from cairn.owner import Owner, Ownership, OwnFacts, Standing, decode, encode, standing

SINCE = datetime(2026, 11, 23, tzinfo=UTC)


def uuid(n: int) -> str:
    return str(UUID(int=n))


MINE = Ownership(
    generation=2,
    ownership_id=uuid(2),
    database_id="1-2-3",
    timeline=1,
    since=SINCE,
    is_written=True,
)
FACTS = OwnFacts(
    metastore_id=uuid(10),
    database_id="1-2-3",
    timeline=1,
    job="words",
    job_id="words-1",
    storage="file:///tmp",
    next_checkpoint_id=7,
    ownership=MINE,
    written_generation=2,
)
NEW = replace(FACTS, ownership=None, written_generation=0)
BEGUN = replace(FACTS, ownership=replace(MINE, is_written=False), written_generation=1)
OWNER = Owner(
    metastore_id=uuid(10),
    database_id="1-2-3",
    timeline=1,
    generation=2,
    ownership_id=uuid(2),
    since=SINCE,
)
EARLIER = replace(OWNER, generation=1, ownership_id=uuid(1))
THEIRS = replace(OWNER, metastore_id=uuid(20), database_id="9-9-9", ownership_id=uuid(99))


@pytest.mark.parametrize(
    ("facts", "owner", "expected"),
    [
        (FACTS, OWNER, Standing.OWNED),
        (replace(FACTS, timeline=2), OWNER, Standing.OTHER_TIMELINE),
        # Its rows are those of the original, and its timeline may be, too.
        (replace(FACTS, database_id="1-4-3"), OWNER, Standing.FOREIGN),
        (FACTS, THEIRS, Standing.FOREIGN),
        (FACTS, replace(THEIRS, generation=3), Standing.FOREIGN),
        # Of two that are alike in all but this, the one that took over.
        (FACTS, replace(OWNER, generation=3, ownership_id=uuid(3)), Standing.FOREIGN),
        (FACTS, EARLIER, Standing.MISSING),
        (FACTS, None, Standing.MISSING),
        (NEW, None, Standing.UNOWNED),
        (NEW, THEIRS, Standing.FOREIGN),
        (BEGUN, EARLIER, Standing.UNFINISHED),
        # A take-over that was begun is not finished by whoever asks next.
        (BEGUN, replace(THEIRS, generation=1), Standing.FOREIGN),
        (replace(BEGUN, timeline=2), EARLIER, Standing.OTHER_TIMELINE),
        (replace(BEGUN, written_generation=0), EARLIER, Standing.FOREIGN),
        (BEGUN, OWNER, Standing.OWNED),
        (BEGUN, THEIRS, Standing.FOREIGN),
        (BEGUN, None, Standing.MISSING),
        (replace(BEGUN, written_generation=0), None, Standing.UNFINISHED),
        # A copy does not finish what the original has begun.
        (replace(BEGUN, database_id="1-4-3"), EARLIER, Standing.FOREIGN),
        (replace(BEGUN, database_id="1-4-3", written_generation=0), None, Standing.UNOWNED),
    ],
)
def test_the_newest_owner_object_says_whose_the_root_is(
    facts: OwnFacts, owner: Owner | None, expected: Standing
) -> None:
    assert standing(facts, owner) is expected


@given(
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([1, 2]),
    st.sampled_from(["1-2-3", "1-4-3"]),
)
def test_nobody_owns_a_root_whose_newest_object_is_not_their_own(
    of_object: int, generation: int, is_written: bool, id_: int, timeline: int, database_id: str
) -> None:
    owner = replace(OWNER, generation=of_object, ownership_id=uuid(id_)) if of_object else None
    mine = replace(MINE, generation=generation, is_written=is_written)
    facts = replace(
        FACTS,
        ownership=mine if generation else None,
        written_generation=generation if is_written else 0,
        timeline=timeline,
        database_id=database_id,
    )
    if standing(facts, owner) is Standing.OWNED:
        assert owner is not None
        assert facts.ownership is not None
        assert owner.ownership_id == facts.ownership.ownership_id
        assert (owner.database_id, owner.timeline) == (database_id, timeline)


def test_an_owner_object_reads_back() -> None:
    assert decode(encode(OWNER), file="o") == OWNER


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        encode(OWNER)[:-20],
        encode(OWNER).replace(b"cairn-owner", b"cairn-other"),
        encode(OWNER).replace(b'"generation":2', b'"generation":-2'),
        encode(OWNER).replace(b'"generation":2', b'"generation":1e30'),
        encode(OWNER).replace(b'"timeline":1', b'"timeline":"1"'),
        encode(OWNER).replace(uuid(2).encode(), b"nobody"),
        encode(OWNER).replace(b"1-2-3", b"\\u0000"),
        b'{"form": "cairn-owner", "version": 1}',
    ],
)
def test_other_bytes_are_no_owner(data: bytes) -> None:
    with pytest.raises(CorruptSegmentError, match=r"owner object cannot be read.*take-over"):
        decode(data, file="o")


def test_the_owner_object_of_a_newer_cairn_is_refused() -> None:
    newer = json.dumps({"form": "cairn-owner", "version": 2}).encode()
    with pytest.raises(RefusedError, match="has version 2, this Cairn reads 1"):
        decode(newer, file="o")


def test_owner_objects_sort_by_generation_and_no_other_path_is_one() -> None:
    paths = [owner_file("words-1", n) for n in (1, 9, 10, 2**62)]
    assert sorted(paths) == paths
    assert [generation_of(path) for path in paths] == [1, 9, 10, 2**62]
    for path in (
        owner_file("words-1", 0),
        owner_file("words-1", 2**63),
        "words-1/owner/1",
        "words-1/owner",
        f"x/{owner_file('words-1', 1)}",
        f"{owner_file('words-1', 1)}/x",
    ):
        assert generation_of(path) is None
