"""Group commits as rows: packing the acks and segments of a group, and unpacking its segments."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from cairn.catalog.connections import array
from cairn.catalog.job.files import WrittenFile
from cairn.catalog.job.upload_stats import MOST, UploadStats, upload_facts
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange, range_of
from cairn.segment_index import IndexRef
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
class StoredSegment:
    """A segment as the metastore has it: its subtask, its file, and its handle."""

    subtask: int
    file_id: str
    scope: Scope
    handle: SegmentHandle


def rows_of(
    acks: Sequence[Ack],
    tm_id: str,
    files: Mapping[str, WrittenFile],
    uploads: Sequence[UploadStats],
    pool_wait_ms: int,
) -> list[dict[str, Any]]:
    """Returns a group commit as columns: a row for each file with segments, at least one.

    `files` are by the path that segments have. Arrays are text, as `cairn.acknowledge` takes them.
    """
    by_file: dict[str | None, list[tuple[int, SegmentHandle]]] = {}
    for ack in acks:
        for segment in ack.segments:
            by_file.setdefault(files[segment.path].file_id, []).append((ack.subtask, segment))
    rows = [
        {
            **_NO_ACKS,
            "commit_id": str(uuid.uuid4()),
            "file_id": file_id,
            "tm_id": tm_id,
            **_segment_columns(segments),
        }
        for file_id, segments in (by_file or {None: []}).items()
    ]
    rows[0] |= _ack_columns(acks) | upload_facts(uploads, pool_wait_ms)
    return rows


_NO_ACKS = dict.fromkeys(
    ("subtasks", "attempt_ids", "task_attempts", "input_rows", "restore_ms"), "{}"
)


def _ack_columns(acks: Sequence[Ack]) -> dict[str, Any]:
    inputs = max((len(ack.max_event_ms) for ack in acks), default=0)
    times = [(*ack.max_event_ms, *[None] * (inputs - len(ack.max_event_ms))) for ack in acks]
    return {
        "subtasks": array(ack.subtask for ack in acks),
        "attempt_ids": array(ack.attempt_id for ack in acks),
        "task_attempts": array(ack.task_attempt for ack in acks),
        "input_rows": array(ack.input_rows for ack in acks),
        "late_rows": _unless_all([ack.late_rows for ack in acks], 0),
        "max_event_ms": array(time for one in times for time in one) if inputs else None,
        "restore_ms": array(min(ack.restore_ms, MOST) for ack in acks),
    }


def _segment_columns(segments: Sequence[tuple[int, SegmentHandle]]) -> dict[str, Any]:
    handles = [handle for _, handle in segments]
    return {
        "segment_ids": array(handle.segment_id for handle in handles),
        "segment_subtasks": array(subtask for subtask, _ in segments),
        "segment_kinds": _unless_all(
            [handle.kind.value for handle in handles], SegmentKind.CHANGELOG.value
        ),
        "sequence_numbers": _unless_all([handle.sequence_number for handle in handles], 0),
        "offsets_bytes": array(handle.offset for handle in handles),
        "sizes_bytes": array(handle.size_bytes for handle in handles),
        "sha256s": "\\x" + "".join([handle.sha256 for handle in handles]),
        **_index_columns(handles),
        "entries": array(handle.entries for handle in handles),
    }


def _index_columns(handles: Sequence[SegmentHandle]) -> dict[str, Any]:
    """Returns where the indexes of large segments are; nothing where all are small."""
    indexes = [handle.index for handle in handles]
    if not any(indexes):
        return {"index_sizes_bytes": None, "index_sha256s": None}
    sha256s = [index.sha256 if index else "00" * 32 for index in indexes]
    return {
        "index_sizes_bytes": array(index.size_bytes if index else 0 for index in indexes),
        "index_sha256s": "\\x" + "".join(sha256s),
    }


def _unless_all(values: list[T], usual: T) -> str | None:
    return None if all(value == usual for value in values) else array(values)


COMMITTED = """
    SELECT
        g.checkpoint_id, CAST(g.file_id AS text), g.max_parallelism, g.parallelism, g.subtasks,
        CAST(g.attempt_ids AS text[]), g.replaced_subtasks, CAST(g.segment_ids AS text[]),
        g.segment_subtasks, g.segment_kinds, g.sequence_numbers, g.offsets_bytes, g.sizes_bytes,
        encode(g.sha256s, 'hex'), g.entries, f.path, f.scope, g.index_sizes_bytes,
        encode(g.index_sha256s, 'hex')
    FROM cairn.group_commits AS g
    LEFT JOIN cairn.physical_files AS f ON f.file_id = g.file_id
    WHERE g.job_id = %(job_id)s
"""
"""Selects the columns of `Committed`."""


class Committed(NamedTuple):
    """A row of a group commit with its file, as SQL gives it."""

    checkpoint_id: int
    file_id: str | None
    max_parallelism: int
    parallelism: int
    subtasks: Sequence[int]
    attempt_ids: Sequence[str]
    replaced_subtasks: Sequence[int]
    segment_ids: Sequence[str]
    segment_subtasks: Sequence[int]
    segment_kinds: Sequence[str] | None
    sequence_numbers: Sequence[int] | None
    offsets_bytes: Sequence[int]
    sizes_bytes: Sequence[int]
    sha256s: str
    entries: Sequence[int]
    path: str
    scope: str
    index_sizes_bytes: Sequence[int] | None = None
    index_sha256s: str | None = None

    def index_at(self, place: int) -> IndexRef | None:
        """Returns where the index of the segment at a place is."""
        size_bytes = self.index_sizes_bytes[place] if self.index_sizes_bytes else 0
        if not size_bytes or self.index_sha256s is None:
            return None
        return IndexRef(size_bytes, self.index_sha256s[64 * place : 64 * place + 64])


def unpack(row: Committed, within: KeyGroupRange | None = None) -> Iterator[StoredSegment]:
    """Yields the segments of a group commit's row, but for those of replaced attempts.

    Of subtasks that have key groups in `within`; None: of all.

    They are not released, as far as their handles say: `cairn.catalog.job.segments` knows.
    """
    many = len(row.segment_ids)
    kinds = [SegmentKind(kind) for kind in row.segment_kinds or [SegmentKind.CHANGELOG] * many]
    numbers = row.sequence_numbers or [0] * many
    replaced = set(row.replaced_subtasks)
    for place, subtask in enumerate(row.segment_subtasks):
        if subtask in replaced:
            continue
        key_groups = range_of(subtask, row.parallelism, row.max_parallelism)
        if within is not None and not len(key_groups.intersect(within)):
            continue
        kind = kinds[place]
        handle = SegmentHandle(
            segment_id=row.segment_ids[place],
            kind=kind,
            path=row.path,
            offset=row.offsets_bytes[place],
            size_bytes=row.sizes_bytes[place],
            sha256=row.sha256s[64 * place : 64 * place + 64],
            key_groups=key_groups,
            entries=row.entries[place],
            first_checkpoint=row.checkpoint_id,
            as_of_checkpoint=row.checkpoint_id,
            released_checkpoint=row.checkpoint_id + 1 if kind.is_exclusive else None,
            sequence_number=numbers[place],
            index=row.index_at(place),
        )
        yield StoredSegment(
            subtask=subtask, file_id=str(row.file_id), scope=Scope(row.scope), handle=handle
        )
