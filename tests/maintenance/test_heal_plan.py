"""Which checkpoints a damaged segment is made again from: a pure function of facts."""

from __future__ import annotations

from typing import Any

from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.catalog.job.damage import Damage, way_around
from cairn.catalog.maintenance.heals import HealFacts
from cairn.keygroups import KeyGroupRange
from cairn.maintenance.heal_plan import heals_of, of_json, to_json
from metastore.enums import SegmentKind

JOB = JobFacts(
    job_id="clicks-1",
    name="clicks",
    storage="file:///nowhere",
    num_retained=2,
    file_retention_ms=0,
    current_epoch=1,
)


def damage(name: str, *checkpoints: int, as_of: int, **changes: Any) -> Damage:
    return Damage(
        **{
            "segment_id": name,
            "kind": SegmentKind.KEYED_FULL,
            "subtask": 0,
            "key_groups": KeyGroupRange(0, 8),
            "as_of_checkpoint": as_of,
            "path": f"{name}.seg",
            "checkpoints": frozenset(checkpoints),
            "is_needed_by_next": True,
            **changes,
        }
    )


def heals(*found: Damage, confirmed: tuple[int, ...]) -> Any:
    return heals_of(HealFacts(job=JOB, damage=found, confirmed=confirmed, newest_whole=None))


def test_a_base_is_made_from_the_newest_checkpoint_that_has_its_state_otherwise() -> None:
    base = damage("base", 7, 8, as_of=4)
    [share] = heals(base, confirmed=(3, 5, 6, 7, 8)).shares
    assert (share.segments, share.from_checkpoints) == (("base",), (6,))


def test_a_checkpoint_before_its_state_is_no_source() -> None:
    base = damage("base", 7, 8, as_of=4)
    found = heals(base, confirmed=(2, 3, 7, 8))
    assert (found.shares, found.lost) == ((), (base,))


def test_a_source_that_is_damaged_is_made_up_for_by_an_older_one() -> None:
    """What 6 needs is damaged, and 4 has the state of that."""
    base, older = damage("base", 8, as_of=5), damage("older", 6, as_of=3, is_needed_by_next=False)
    [share] = heals(base, older, confirmed=(4, 6, 8)).shares
    assert share.from_checkpoints == (4, 6)
    assert heals(base, older, confirmed=(2, 6, 8)).lost == (base,)


def test_damage_elsewhere_does_not_matter() -> None:
    base = damage("base", 7, as_of=4)
    other = damage("other", 5, 7, as_of=5, key_groups=KeyGroupRange(8, 16), subtask=1)
    found = heals(base, other, confirmed=(5, 7))
    assert [share.share.key_groups for share in found.shares] == [KeyGroupRange(0, 8)]
    assert found.lost == (other,)


def test_what_overlaps_is_made_again_together() -> None:
    """An increment on top of a base: a checkpoint that has the state of both."""
    base = damage("base", 7, 8, as_of=4, key_groups=KeyGroupRange(0, 4))
    above = damage("above", 8, as_of=6, kind=SegmentKind.KEYED_INCREMENT)
    [share] = heals(base, above, confirmed=(6, 7, 8)).shares
    assert share.share.key_groups == KeyGroupRange(0, 8)
    assert share.from_checkpoints == (6,)
    # 7 has all changes since 5, and is the state of what is above.
    [share] = heals(base, above, confirmed=(5, 7, 8)).shares
    assert share.from_checkpoints == (5, 7)
    assert heals(base, above, confirmed=(5, 8)).lost == (base, above)


def test_what_only_older_checkpoints_need_is_left() -> None:
    base = damage("base", 7, as_of=4, is_needed_by_next=False)
    found = heals(base, confirmed=(6, 7, 8))
    assert (found.shares, found.lost) == ((), ())


def test_changelog_is_lost() -> None:
    changes = damage("changes", 7, 8, as_of=7, kind=SegmentKind.CHANGELOG)
    assert heals(changes, confirmed=(5, 6, 7, 8)).lost == (changes,)


def test_before_the_first_confirmed_checkpoint_all_is_lost() -> None:
    changes = damage("changes", as_of=1, kind=SegmentKind.CHANGELOG)
    assert heals(changes, confirmed=()).lost == (changes,)


def test_nothing_is_unreadable() -> None:
    assert way_around([], [], [1, 2]) == ()


def test_a_plan_is_json() -> None:
    found = heals(damage("base", 7, as_of=4), confirmed=(6, 7))
    assert of_json(to_json(found)) == [one.share for one in found.shares]
