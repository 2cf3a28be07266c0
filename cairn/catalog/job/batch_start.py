"""The begin of a batch as its tasks read it: times, the parent checkpoint, and the acks there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from cairn.catalog.connections import array, call
from cairn.catalog.job.group_commits import COMMITTED, Committed, unpack
from cairn.handles import SegmentHandle
from metastore.enums import SegmentKind


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


# As constant texts: to build statements anew takes longer than to run them.
_OWN_ACKS = f"""{COMMITTED} AND g.checkpoint_id = %(checkpoint_id)s
      AND (g.subtasks && CAST(%(subtasks)s AS integer[]) OR g.segment_subtasks && (
        -- Of all that committed with them, too: their segments may be in other rows.
        SELECT array_agg(together.subtask)
        FROM cairn.group_commits AS o CROSS JOIN LATERAL unnest(o.subtasks) AS together (subtask)
        WHERE o.job_id = %(job_id)s AND o.checkpoint_id = %(checkpoint_id)s
          AND o.subtasks && CAST(%(subtasks)s AS integer[])
      ))
"""  # noqa: S608 - fixed texts


def acks_at(
    connection: Connection, job_id: str, checkpoint_id: int, subtasks: Sequence[int]
) -> dict[int, ParentAck]:
    """Returns the acks of a checkpoint's group commits that have some of the subtasks.

    One that a checkpoint was restored with, or that was rebuilt, has none.
    """
    facts = {"job_id": job_id, "checkpoint_id": checkpoint_id, "subtasks": array(subtasks)}
    return acks_of([Committed(*row) for row in call(connection, _OWN_ACKS, facts)])


def acks_of(rows: Sequence[Committed]) -> dict[int, ParentAck]:
    """Returns the acks in the rows of whole group commits."""
    attempts = {
        subtask: attempt_id
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
