"""The segments of a checkpoint: handles and the order to replay them in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Row,
    and_,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import Range, insert

from cairn.catalog.connections import call
from cairn.catalog.job.coverage import Coverage
from cairn.catalog.job.group_commits import COMMITTED, Committed, StoredSegment, unpack
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.segment_index import IndexRef
from metastore.enums import KEYED, CheckpointStatus, SegmentKind, SegmentStatus
from metastore.models import Checkpoint, Job, PhysicalFile, PlacedSegment, Run

HANDLE_COLUMNS = (
    PlacedSegment.segment_id,
    PlacedSegment.kind,
    PhysicalFile.path,
    PlacedSegment.offset_bytes,
    PlacedSegment.size_bytes,
    PlacedSegment.sha256,
    PlacedSegment.index_size_bytes,
    PlacedSegment.index_sha256,
    PlacedSegment.key_groups,
    PlacedSegment.entries,
    PlacedSegment.first_checkpoint,
    PlacedSegment.as_of_checkpoint,
    PlacedSegment.released_checkpoint,
    PlacedSegment.sequence_number,
)


def read_one_instant(connection: Connection) -> None:
    """Makes all statements of a transaction, which only reads, see one instant; it is the first.

    Placed segments and group commits are read one after the other. In between, a base may be
    installed and the changelog that it replaces may die: neither would be found.
    """
    connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))


def segments_at(
    connection: Connection, job_id: str, checkpoint_id: int, key_groups: KeyGroupRange
) -> list[SegmentHandle]:
    """Returns what a restore of some key groups to a checkpoint reads, in order of replay.

    The transaction reads one instant, or holds the job's lock.

    Replay order: by `as_of_checkpoint`, and within one a changelog before an increment before a
    base, because a base replaces its key groups whole.
    """
    stored = stored_at(connection, job_id, checkpoint_id, key_groups)
    handles = [one.handle for one in stored if one.handle.kind in KEYED]
    return sorted(handles, key=replay_order)


def stored_at(
    connection: Connection, job_id: str, checkpoint_id: int, key_groups: KeyGroupRange
) -> list[StoredSegment]:
    """Returns the segments of a checkpoint's state that are needed in some key groups.

    Of all kinds; one of an operator's lists where its subtask has key groups among them.
    """
    placed = placed_segments(
        connection,
        state_of(job_id, checkpoint_id),
        PlacedSegment.key_groups.op("&&")(Range(key_groups.start, key_groups.end)),
    )
    committed = commits_after(connection, job_id, placed, key_groups, until=checkpoint_id)
    return [*placed, *committed]


# Of each row only what lies between the first and the last segment of the subtasks that have some
# of the key groups: to read one subtask's changelog must not cost what reading that of all does.
# All that is covered may be deleted already.
_COMMITS_AFTER = """
    SELECT
        g.checkpoint_id, CAST(g.file_id AS text), g.max_parallelism, g.parallelism,
        CAST('{}' AS integer[]), CAST('{}' AS text[]), g.replaced_subtasks,
        CAST(g.segment_ids[own.low:own.high] AS text[]), g.segment_subtasks[own.low:own.high],
        g.segment_kinds[own.low:own.high], g.sequence_numbers[own.low:own.high],
        g.offsets_bytes[own.low:own.high], g.sizes_bytes[own.low:own.high],
        encode(
            substring(g.sha256s FROM 32 * own.low - 31 FOR 32 * (own.high - own.low + 1)), 'hex'
        ),
        g.entries[own.low:own.high], f.path, f.scope, g.index_sizes_bytes[own.low:own.high],
        encode(
            substring(g.index_sha256s FROM 32 * own.low - 31 FOR 32 * (own.high - own.low + 1)),
            'hex'
        )
    FROM cairn.group_commits AS g
    CROSS JOIN LATERAL (
        SELECT CAST(min(s.place) AS integer) AS low, CAST(max(s.place) AS integer) AS high
        FROM unnest(g.segment_subtasks) WITH ORDINALITY AS s (subtask, place)
        WHERE s.subtask BETWEEN %(low)s * g.parallelism / g.max_parallelism
            AND (%(high)s - 1) * g.parallelism / g.max_parallelism
    ) AS own
    JOIN cairn.physical_files AS f ON f.file_id = g.file_id
    WHERE g.job_id = %(job_id)s AND g.status = 'LIVE' AND g.checkpoint_id <= %(until)s
      AND (
        g.checkpoint_id = %(until)s
        OR (g.checkpoint_id > %(covered)s AND g.key_groups && int4range(%(low)s, %(high)s))
      )
      AND own.low IS NOT NULL
"""
_WITH_LISTS = f"""{COMMITTED}
      AND g.checkpoint_id = %(checkpoint_id)s AND g.status = 'LIVE'
      AND 'operator' = ANY (g.segment_kinds)
"""


def commits_after(
    connection: Connection,
    job_id: str,
    placed: Sequence[StoredSegment],
    key_groups: KeyGroupRange,
    *,
    until: int,
) -> list[StoredSegment]:
    """Returns the segments of group commits up to a checkpoint that are not covered.

    Those of one checkpoint alone are of `until`. `placed` has the bases and increments that count.
    """
    coverage = Coverage.of(one.handle for one in placed)
    rows = call(
        connection,
        _COMMITS_AFTER,
        {
            "job_id": job_id,
            "until": until,
            "covered": coverage.least(key_groups),
            "low": key_groups.start,
            "high": key_groups.end,
        },
    )
    return [
        one
        for row in rows
        for one in unpack(Committed(*row), key_groups)
        if (
            one.handle.first_checkpoint == until
            if one.handle.kind.is_exclusive
            else coverage.is_needed(one.handle, key_groups)
        )
    ]


def placed_segments(connection: Connection, *which: ColumnElement[bool]) -> list[StoredSegment]:
    """Returns the placed segments that fulfil the conditions."""
    rows = connection.execute(
        select(*HANDLE_COLUMNS, PlacedSegment.subtask, PlacedSegment.file_id, PhysicalFile.scope)
        .join(PhysicalFile, PhysicalFile.file_id == PlacedSegment.file_id)
        .where(*which)
    )
    return [
        StoredSegment(
            subtask=row.subtask,
            file_id=str(row.file_id),
            scope=row.scope,
            handle=handle_of(row),
        )
        for row in rows
    ]


def lists_at(connection: Connection, job_id: str, checkpoint_id: int) -> dict[int, SegmentHandle]:
    """Returns a checkpoint's segments of operator lists by subtask; most have none."""
    placed = placed_segments(
        connection,
        state_of(job_id, checkpoint_id),
        PlacedSegment.kind == SegmentKind.OPERATOR,
    )
    rows = call(connection, _WITH_LISTS, {"job_id": job_id, "checkpoint_id": checkpoint_id})
    committed = (one for row in rows for one in unpack(Committed(*row)))
    return {
        one.subtask: one.handle
        for one in (*placed, *committed)
        if one.handle.kind is SegmentKind.OPERATOR
    }


def state_of(job_id: str, checkpoint_id: int) -> ColumnElement[bool]:
    """Returns the condition that a placed segment is part of a checkpoint's state."""
    return and_(
        PlacedSegment.job_id == job_id,
        PlacedSegment.status == SegmentStatus.LIVE,
        # A manifest describes the state and is no part of it.
        PlacedSegment.kind != SegmentKind.MANIFEST,
        func.cairn.is_part_of(
            PlacedSegment.first_checkpoint,
            PlacedSegment.released_checkpoint,
            checkpoint_id,
            type_=Boolean,
        ),
    )


def current_epoch(connection: Connection, job_id: str) -> int:
    """Returns the newest run of a job that has begun a batch; 0 if none has."""
    return connection.execute(select(Job.current_epoch).where(Job.job_id == job_id)).scalar_one()


def lineage_of(connection: Connection, job_id: str, checkpoint_id: int) -> str | None:
    """Returns the id of the run that made a checkpoint which Spark has committed; else None."""
    run_id = connection.scalar(
        select(Run.run_id)
        .join(Checkpoint, and_(Checkpoint.job_id == Run.job_id, Checkpoint.epoch == Run.epoch))
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.checkpoint_id == checkpoint_id,
            # Subsumed ones, too: local state that is far behind may be of one.
            Checkpoint.status.in_([CheckpointStatus.CONFIRMED, CheckpointStatus.SUBSUMED]),
        )
    )
    return None if run_id is None else str(run_id)


_REPLAY_RANK = {
    SegmentKind.CHANGELOG: 0,
    SegmentKind.KEYED_INCREMENT: 1,
    SegmentKind.KEYED_FULL: 2,
    SegmentKind.OPERATOR: 3,
    SegmentKind.CHANNEL: 4,
}


def replay_order(handle: SegmentHandle) -> tuple[int, ...]:
    """Returns the sort key of replay.

    By as-of checkpoint; changelog, increment, base, and kinds not replayed; key groups, which
    one subtask has in one checkpoint; sequence number.
    """
    return (
        handle.as_of_checkpoint,
        _REPLAY_RANK[handle.kind],
        # As numbers: ranges are compared by a method, and there are many.
        handle.key_groups.start,
        handle.key_groups.end,
        handle.sequence_number,
    )


def handle_of(row: Row[*tuple[Any, ...]]) -> SegmentHandle:
    """Returns the handle in a row that has `HANDLE_COLUMNS`."""
    return SegmentHandle(
        segment_id=str(row.segment_id),
        kind=row.kind,
        path=row.path,
        offset=row.offset_bytes,
        size_bytes=row.size_bytes,
        sha256=row.sha256,
        key_groups=KeyGroupRange(row.key_groups.lower, row.key_groups.upper),
        entries=row.entries,
        first_checkpoint=row.first_checkpoint,
        as_of_checkpoint=row.as_of_checkpoint,
        released_checkpoint=row.released_checkpoint,
        sequence_number=row.sequence_number,
        index=row.index_size_bytes and IndexRef(row.index_size_bytes, row.index_sha256),
    )


def place_segments(
    connection: Connection, job_id: str, segments: Sequence[tuple[str, int, SegmentHandle]]
) -> None:
    """Inserts placed segments, at least one, each with its sealed file's id and its subtask.

    Those whose ids are known are passed over.
    """
    rows = [
        {
            "segment_id": UUID(handle.segment_id),
            "job_id": job_id,
            "file_id": UUID(file_id),
            "kind": handle.kind,
            "subtask": subtask,
            "key_groups": Range(handle.key_groups.start, handle.key_groups.end),
            "offset_bytes": handle.offset,
            "size_bytes": handle.size_bytes,
            "sha256": handle.sha256,
            "index_size_bytes": handle.index and handle.index.size_bytes,
            "index_sha256": handle.index and handle.index.sha256,
            "entries": handle.entries,
            "first_checkpoint": handle.first_checkpoint,
            "as_of_checkpoint": handle.as_of_checkpoint,
            "released_checkpoint": handle.released_checkpoint,
            "sequence_number": handle.sequence_number,
        }
        for file_id, subtask, handle in segments
    ]
    connection.execute(
        insert(PlacedSegment).on_conflict_do_nothing(index_elements=[PlacedSegment.segment_id]),
        rows,
    )
