"""The view of damaged segments: who needs each, and from what it can be made again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert, text
from sqlalchemy.dialects.postgresql import Range

from cairn.layout import manifest_file
from metastore.enums import Scope, SegmentKind
from metastore.models import Checkpoint, PlacedSegment
from tests.metastore.metric_values import metric
from tests.metastore.rows import Rows


def place(rows: Rows, kind: SegmentKind, first: int, **columns: Any) -> tuple[UUID, UUID]:
    """Adds a segment in a file of its own; returns the file and it."""
    path = manifest_file(rows.job_id, first) if kind is SegmentKind.MANIFEST else None
    file_id = rows.file(path=path, scope=Scope.SHARED)
    rows.execute(
        insert(PlacedSegment).values(
            **{
                "segment_id": file_id,
                "job_id": rows.job_id,
                "file_id": file_id,
                "kind": kind,
                "subtask": 0,
                "key_groups": Range(0, 8),
                "offset_bytes": 0,
                "size_bytes": 100,
                "sha256": "00",
                "entries": 1,
                "first_checkpoint": first,
                "as_of_checkpoint": first,
                **columns,
            }
        )
    )
    return file_id, file_id


def found(rows: Rows) -> dict[UUID, Any]:
    return {row["segment_id"]: row for row in rows.view("v_damaged_segments")}


@pytest.fixture
def bases(rows: Rows) -> tuple[UUID, UUID]:
    """Makes a base as of checkpoint 0, and one as of 2 that is part of 4 and 5 and later ones."""
    older, _ = place(rows, SegmentKind.KEYED_FULL, 1, as_of_checkpoint=0)
    for checkpoint_id in (1, 2, 3):
        rows.checkpoint(checkpoint_id, "CONFIRMED")
    newer, _ = place(rows, SegmentKind.KEYED_FULL, 4, as_of_checkpoint=2)
    for checkpoint_id in (4, 5):
        rows.checkpoint(checkpoint_id, "CONFIRMED")
    return older, newer


def test_a_damaged_segment_is_shown_with_each_checkpoint_and_manifest_that_needs_it(
    rows: Rows,
) -> None:
    for checkpoint_id in (1, 2):
        rows.checkpoint(checkpoint_id, "SUBSUMED" if checkpoint_id == 1 else "CONFIRMED")
        place(rows, SegmentKind.MANIFEST, checkpoint_id, released_checkpoint=checkpoint_id + 1)
    rows.checkpoint(3, "CONFIRMED")
    rows.checkpoint(4, "IN_PROGRESS")
    file_id = rows.file()
    released = rows.segment(file_id, first_checkpoint=1, released_checkpoint=4)
    open_ = rows.segment(file_id, first_checkpoint=3)
    for segment_id in (released, open_):
        rows.damage(file_id, segment_id)
    seen = found(rows)
    assert seen[released]["checkpoints"] == [2, 3]
    [manifest] = seen[released]["manifests"]
    assert manifest == f"file:///nowhere/{manifest_file(rows.job_id, 2)}"
    assert not seen[released]["is_needed_by_next"]
    assert seen[open_]["checkpoints"] == [3, 4]
    assert seen[open_]["is_needed_by_next"]
    assert metric(rows.url, rows.job_id, "Storage.damagedSegments") == {None: 2}
    history = {r["checkpoint_id"]: r["damaged_segments"] for r in rows.view("v_checkpoint_history")}
    assert history == {1: 0, 2: 1, 3: 2, 4: 1}


def test_a_segment_of_a_group_commit_is_shown_and_a_replaced_one_is_not(rows: Rows) -> None:
    rows.checkpoint(1, "IN_PROGRESS")
    file_id = rows.file()
    commit_id = rows.packed(file_id, 1, 0, 1)
    [row] = rows.execute(
        text("SELECT segment_ids FROM cairn.group_commits WHERE commit_id = :id").bindparams(
            id=commit_id
        )
    )
    first, second = row["segment_ids"]
    for segment_id in (first, second):
        rows.damage(file_id, segment_id, "missing")
    rows.execute(
        text(
            "UPDATE cairn.group_commits SET replaced_subtasks = '{0}' WHERE commit_id = :id"
        ).bindparams(id=commit_id)
    )
    [shown] = rows.view("v_damaged_segments")
    assert (shown["segment_id"], shown["subtask"], shown["offset_bytes"]) == (second, 1, 100)
    assert (shown["kind"], shown["checkpoints"]) == ("changelog", [1])


def test_what_is_dead_or_whole_again_is_not_shown(rows: Rows) -> None:
    file_id = rows.file()
    dead = rows.segment(file_id, released_checkpoint=2, status="DEAD")
    whole = rows.segment(file_id)
    for segment_id in (dead, whole):
        rows.damage(file_id, segment_id)
    rows.execute(
        text(
            "UPDATE cairn.damaged_segments SET resolved_at = now() WHERE segment_id = :id"
        ).bindparams(id=whole)
    )
    assert rows.view("v_damaged_segments") == []


def test_a_base_can_be_made_from_a_checkpoint_that_has_its_state_by_older_segments(
    rows: Rows, bases: tuple[UUID, UUID]
) -> None:
    older, newer = bases
    rows.damage(newer, newer)
    seen = found(rows)[newer]
    assert (seen["checkpoints"], seen["heals_from"]) == ([4, 5], 3)
    # Of nothing that is damaged itself, as far as it is of these key groups.
    rows.damage(older, older)
    assert found(rows)[newer]["heals_from"] is None
    assert found(rows)[older]["heals_from"] is None


def test_a_base_cannot_be_made_from_a_checkpoint_before_its_state(
    rows: Rows, bases: tuple[UUID, UUID]
) -> None:
    _, newer = bases
    rows.damage(newer, newer)
    for checkpoint_id, expected in ((3, 2), (2, None)):
        which = Checkpoint.checkpoint_id == checkpoint_id
        rows.set_status(Checkpoint, which, "SUBSUMED")
        assert found(rows)[newer]["heals_from"] == expected
