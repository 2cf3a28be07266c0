"""The begin of a batch as its tasks read it: times, the parent checkpoint, and the acks there.

All of it is immutable once the batch has begun, so it is read without a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, text

from cairn.batch_ref import BatchRef
from cairn.catalog.job.group_commits import COMMITTED, unpack
from cairn.catalog.job.segments import lists_at
from cairn.errors import FencedError
from cairn.handles import SegmentHandle
from metastore.enums import CheckpointStatus, SegmentKind

TAKES_ACKS = (CheckpointStatus.IN_PROGRESS, CheckpointStatus.COMPLETED)


@dataclass(frozen=True, slots=True)
class ParentAck:
    """The attempt whose changes count for one subtask of the parent, and its changelog in order."""

    attempt_id: str
    segments: tuple[SegmentHandle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The checkpoint whose state a batch starts from, its run, and the one before with its run.

    `acks` and `lists`, the segments of operator lists, are by subtask.
    """

    checkpoint_id: int
    run_id: str
    parent_checkpoint: int | None
    parent_run_id: str | None
    parallelism: int
    acks: dict[int, ParentAck]
    lists: dict[int, SegmentHandle] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clock:
    """Milliseconds since 1970 by the database's clock; bases by the start of their key groups.

    The times of bases are also those of the increments on top of them.
    """

    now_ms: int
    job_created_ms: int
    base_made_ms: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStart:
    """The begin of a batch: its checkpoint, the parent (None: no state yet), and the times.

    Processing time and watermark are those that processors see, in ms since 1970. Rows at or
    before `late_watermark_ms`, the parent's watermark, are late, as in Spark.
    """

    checkpoint_id: int
    parent: Parent | None
    clock: Clock
    processing_ms: int
    watermark_ms: int
    late_watermark_ms: int


def read_start(
    connection: Connection,
    batch: BatchRef,
    *,
    subtasks: Sequence[int] | None = None,
    with_lists: bool = False,
) -> BatchStart | None:
    """Returns the begin of a batch; None if this run has not begun it, or was replaced.

    The parent has the acks of the group commits that have some of the subtasks; None: of all. With
    `with_lists` it has its operator lists, for one more statement.

    Raises:
        FencedError: a newer run has taken the batch again.
    """
    found = connection.execute(
        _BEGUN,
        {
            "job_id": batch.job_id,
            "epoch": batch.epoch,
            "query_id": batch.query_id,
            "batch_id": batch.batch_id,
        },
    ).one_or_none()
    if found is None or found.current_epoch != batch.epoch:
        return None
    if found.status not in TAKES_ACKS:
        raise FencedError(
            f"batch {batch.batch_id} is {found.status}; a late attempt of it changes nothing",
            job=batch.job,
            checkpoint=found.checkpoint_id,
        )
    return BatchStart(
        checkpoint_id=found.checkpoint_id,
        parent=_parent(connection, batch.job_id, found, subtasks, with_lists),
        clock=Clock(
            now_ms=found.now_ms,
            job_created_ms=found.created_ms,
            base_made_ms=dict(zip(found.base_starts or (), found.bases_made_ms or (), strict=True)),
        ),
        processing_ms=found.processing_ms,
        watermark_ms=found.watermark_ms,
        late_watermark_ms=found.late_watermark_ms or 0,
    )


# As constant texts: to build these statements anew takes longer than to run them.
_BEGUN = text("SELECT * FROM cairn.begun_batch(:job_id, :epoch, :query_id, :batch_id)")
_ACKS = text(f"{COMMITTED} AND g.checkpoint_id = :checkpoint_id")
_OWN_ACKS = text(f"""{COMMITTED} AND g.checkpoint_id = :checkpoint_id
      AND (g.subtasks && CAST(:subtasks AS integer[]) OR g.segment_subtasks && (
        -- Of all that committed with them, too: their segments may be in other rows.
        SELECT array_agg(together.subtask)
        FROM cairn.group_commits AS o CROSS JOIN LATERAL unnest(o.subtasks) AS together (subtask)
        WHERE o.job_id = :job_id AND o.checkpoint_id = :checkpoint_id
          AND o.subtasks && CAST(:subtasks AS integer[])
      ))
""")  # noqa: S608 - fixed texts


def _parent(
    connection: Connection,
    job_id: str,
    found: Row[*tuple[Any, ...]],
    subtasks: Sequence[int] | None,
    with_lists: bool,
) -> Parent | None:
    parent_id = found.parent_checkpoint
    if parent_id is None:
        return None
    return Parent(
        checkpoint_id=parent_id,
        run_id=str(found.parent_run_id),
        parent_checkpoint=found.before,
        parent_run_id=found.run_before and str(found.run_before),
        parallelism=found.parent_parallelism,
        acks=acks_at(connection, job_id, parent_id, subtasks),
        lists=lists_at(connection, job_id, parent_id) if with_lists else {},
    )


def acks_at(
    connection: Connection, job_id: str, checkpoint_id: int, subtasks: Sequence[int] | None = None
) -> dict[int, ParentAck]:
    """Returns the acks of a checkpoint's group commits that have some of the subtasks.

    None: of all. One that a checkpoint was restored with, or that was rebuilt, has none.
    """
    facts: dict[str, Any] = {"job_id": job_id, "checkpoint_id": checkpoint_id}
    if subtasks is None:
        rows = connection.execute(_ACKS, facts).all()
    else:
        rows = connection.execute(_OWN_ACKS, {**facts, "subtasks": list(subtasks)}).all()
    attempts = {
        subtask: str(attempt_id)
        for row in rows
        for subtask, attempt_id in zip(row.subtasks, row.attempt_ids, strict=True)
        if subtask not in row.replaced_subtasks
    }
    changelog: dict[int, list[SegmentHandle]] = {subtask: [] for subtask in attempts}
    for one in (one for row in rows for one in unpack(row)):
        if one.handle.kind is SegmentKind.CHANGELOG and one.subtask in changelog:
            changelog[one.subtask].append(one.handle)
    return {
        subtask: ParentAck(
            attempt_id,
            tuple(sorted(changelog[subtask], key=lambda handle: handle.sequence_number)),
        )
        for subtask, attempt_id in attempts.items()
    }
