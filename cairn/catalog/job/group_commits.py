"""Group commits as rows: packing the acks and segments of a group, and unpacking its segments."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, text

from cairn.catalog.job.files import WrittenFile
from cairn.catalog.job.upload_stats import MOST, UPLOAD_COLUMNS, UploadStats, upload_facts
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange, range_of
from metastore.enums import Scope, SegmentKind

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """One subtask's acknowledgement. It has no segments if it changed nothing."""

    subtask: int
    attempt_id: str
    task_attempt: int
    input_rows: int
    restore_ms: int
    segments: tuple[SegmentHandle, ...] = ()
    late_rows: int = 0
    max_event_ms: tuple[int | None, ...] = ()
    """Latest event time in its rows by input, in ms since 1970; None: no row of that input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The acks of one group commit of an executor, and its files by the path of their segments.

    `parallelism` is the run's, `max_parallelism` the job's. `pool_wait_ms` is how long the group
    waited for a file.
    """

    job_id: str
    checkpoint_id: int
    tm_id: str
    parallelism: int
    max_parallelism: int
    acks: Sequence[Ack]
    files: Mapping[str, WrittenFile]
    uploads: Sequence[UploadStats] = ()
    pool_wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSegment:
    """A segment as the metastore has it: its subtask, its file, and its handle."""

    subtask: int
    file_id: str
    scope: Scope
    handle: SegmentHandle


def add_group(connection: Connection, group: Group) -> None:
    """Inserts a group commit: one row for each file with segments, at least one for the acks."""
    by_file: dict[str | None, list[tuple[int, SegmentHandle]]] = {}
    for ack in group.acks:
        for segment in ack.segments:
            file_id = group.files[segment.path].file_id
            by_file.setdefault(file_id, []).append((ack.subtask, segment))
    rows = [
        _row(group, file_id, segments, is_first=number == 0)
        for number, (file_id, segments) in enumerate((by_file or {None: []}).items())
    ]
    for row in rows:
        connection.execute(_ADD, {**_NOTHING, **row})


def _row(
    group: Group,
    file_id: str | None,
    segments: Sequence[tuple[int, SegmentHandle]],
    *,
    is_first: bool,
) -> dict[str, Any]:
    own: dict[str, Any] = {
        "commit_id": str(uuid.uuid4()),
        "job_id": group.job_id,
        "checkpoint_id": group.checkpoint_id,
        "file_id": file_id,
        "tm_id": group.tm_id,
        "parallelism": group.parallelism,
        "max_parallelism": group.max_parallelism,
        **_segment_columns(group, segments),
    }
    if is_first:
        own |= _ack_columns(group.acks)
        own |= upload_facts(group.uploads, group.pool_wait_ms)
    return own


def _ack_columns(acks: Sequence[Ack]) -> dict[str, Any]:
    inputs = max((len(ack.max_event_ms) for ack in acks), default=0)
    times = [(*ack.max_event_ms, *[None] * (inputs - len(ack.max_event_ms))) for ack in acks]
    return {
        "subtasks": [ack.subtask for ack in acks],
        "attempt_ids": [ack.attempt_id for ack in acks],
        "task_attempts": [ack.task_attempt for ack in acks],
        "input_rows": [ack.input_rows for ack in acks],
        "late_rows": _unless_all([ack.late_rows for ack in acks], 0),
        "max_event_ms": [time for one in times for time in one] or None,
        "restore_ms": [min(ack.restore_ms, MOST) for ack in acks],
    }


def _segment_columns(group: Group, segments: Sequence[tuple[int, SegmentHandle]]) -> dict[str, Any]:
    handles = [handle for _, handle in segments]
    for subtask, handle in segments:
        # The row says them by the subtask alone.
        if handle.key_groups != range_of(subtask, group.parallelism, group.max_parallelism):
            raise ValueError(f"subtask {subtask} of a group commit has {handle.key_groups}")
    return {
        "segment_ids": [handle.segment_id for handle in handles],
        "segment_subtasks": [subtask for subtask, _ in segments],
        "segment_kinds": _unless_all(
            [handle.kind.value for handle in handles], SegmentKind.CHANGELOG.value
        ),
        "sequence_numbers": _unless_all([handle.sequence_number for handle in handles], 0),
        "offsets_bytes": [handle.offset for handle in handles],
        "sizes_bytes": [handle.size_bytes for handle in handles],
        "sha256s": bytes.fromhex("".join(handle.sha256 for handle in handles)),
        "entries": [handle.entries for handle in handles],
    }


def _unless_all(values: list[T], usual: T) -> list[T] | None:
    return None if all(value == usual for value in values) else values


_ARRAYS = {
    "uuid[]": ("attempt_ids", "segment_ids"),
    "integer[]": (
        "subtasks",
        "restore_ms",
        "segment_subtasks",
        "entries",
    ),
    "bigint[]": (
        "task_attempts",
        "input_rows",
        "late_rows",
        "max_event_ms",
        "offsets_bytes",
        "sizes_bytes",
    ),
    "smallint[]": ("sequence_numbers",),
    "text[]": ("segment_kinds",),
}
_PLAIN = (
    "commit_id",
    "job_id",
    "checkpoint_id",
    "file_id",
    "tm_id",
    "parallelism",
    "max_parallelism",
    "sha256s",
)
_NOTHING: dict[str, Any] = {
    **dict.fromkeys(UPLOAD_COLUMNS),
    **{name: [] for names in _ARRAYS.values() for name in names},
    **dict.fromkeys(("late_rows", "max_event_ms", "sequence_numbers", "segment_kinds")),
}
_VALUES = {
    **{name: f":{name}" for name in (*_PLAIN, *UPLOAD_COLUMNS)},
    **{name: f"CAST(:{name} AS {array})" for array, names in _ARRAYS.items() for name in names},
}
_ADD = text(
    f"INSERT INTO cairn.group_commits ({', '.join(_VALUES)}) VALUES ({', '.join(_VALUES.values())})"  # noqa: S608
)
COMMITTED = """
    SELECT
        g.checkpoint_id, g.file_id, g.parallelism, g.max_parallelism, g.subtasks, g.attempt_ids,
        g.replaced_subtasks, g.segment_ids, g.segment_subtasks, g.segment_kinds,
        g.sequence_numbers, g.offsets_bytes, g.sizes_bytes, g.sha256s, g.entries, f.path, f.scope
    FROM cairn.group_commits AS g
    LEFT JOIN cairn.physical_files AS f ON f.file_id = g.file_id
    WHERE g.job_id = :job_id
"""
"""Selects what `unpack` takes."""


def unpack(
    row: Row[*tuple[Any, ...]], within: KeyGroupRange | None = None
) -> Iterator[StoredSegment]:
    """Yields the segments of a group commit's row, but for those of replaced attempts.

    Of subtasks that have key groups in `within`; None: of all.

    They are not released, as far as their handles say: `cairn.catalog.job.segments` knows.
    """
    many = len(row.segment_ids)
    replaced = set(row.replaced_subtasks)
    for place, subtask in enumerate(row.segment_subtasks):
        if subtask in replaced:
            continue
        key_groups = range_of(subtask, row.parallelism, row.max_parallelism)
        if within is not None and not len(key_groups.intersect(within)):
            continue
        kind = SegmentKind((row.segment_kinds or [SegmentKind.CHANGELOG] * many)[place])
        handle = SegmentHandle(
            segment_id=str(row.segment_ids[place]),
            kind=kind,
            path=row.path,
            offset=row.offsets_bytes[place],
            size_bytes=row.sizes_bytes[place],
            sha256=bytes(row.sha256s[32 * place : 32 * place + 32]).hex(),
            key_groups=key_groups,
            entries=row.entries[place],
            first_checkpoint=row.checkpoint_id,
            as_of_checkpoint=row.checkpoint_id,
            released_checkpoint=row.checkpoint_id + 1 if kind.is_exclusive else None,
            sequence_number=(row.sequence_numbers or [0] * many)[place],
        )
        yield StoredSegment(
            subtask=subtask, file_id=str(row.file_id), scope=Scope(row.scope), handle=handle
        )
