"""Which files a scrub reads next, and what it has found: rows of damaged segments.

A file's row says when its segments were read last. It is one column that a scrub changes once in
weeks, so it costs no row of its own, and nothing of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    Connection,
    Text,
    Uuid,
    any_,
    bindparam,
    func,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from cairn.catalog.cleanup.needs import DAMAGED_SEGMENTS, any_uuid, newest_whole
from metastore.enums import Damage, FileStatus
from metastore.models import DamagedSegment, PhysicalFile

_FILE_IDS = bindparam("file_ids", type_=ARRAY(Uuid()))


@dataclass(frozen=True, slots=True)
class FileTotal:
    """Files that hold live segments, and the bytes of these."""

    files: int
    live_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDamage:
    """A segment that was read and is not as it was recorded."""

    segment_id: UUID
    file_id: UUID
    damage: Damage


@dataclass(frozen=True, slots=True)
class Recorded:
    """What recording has changed: segments known as damaged now, and those that are whole again."""

    damaged: int
    resolved: int


def needed_files(connection: Connection, job_id: str) -> FileTotal:
    """Returns what a whole scrub of a job reads."""
    files, live_bytes = connection.execute(
        select(func.count(), func.coalesce(func.sum(PhysicalFile.live_bytes), 0)).where(
            *_is_needed(job_id)
        )
    ).one()
    return FileTotal(files, int(live_bytes))


def needed_files_after(
    connection: Connection, job_id: str, *, after: UUID, limit: int
) -> list[UUID]:
    """Returns up to `limit` files of a job that hold live segments, by id, after another one."""
    return list(
        connection.scalars(
            select(PhysicalFile.file_id)
            .where(*_is_needed(job_id), PhysicalFile.file_id > after)
            .order_by(PhysicalFile.file_id)
            .limit(limit)
        )
    )


def files_at(connection: Connection, job_id: str, paths: Sequence[str]) -> list[UUID]:
    """Returns the files of a job at some paths that hold live segments, by id."""
    wanted = any_(literal(list(paths), ARRAY(Text())))
    return list(
        connection.scalars(
            select(PhysicalFile.file_id)
            .where(*_is_needed(job_id), PhysicalFile.path == wanted)
            .order_by(PhysicalFile.file_id)
        )
    )


# Its writer had its bytes: a file that no scrub has read counts from when it was sealed.
_SAMPLE = text("""
    SELECT f.file_id, f.live_bytes
    FROM (
        SELECT
            file_id,
            live_bytes,
            sum(live_bytes) OVER oldest_first - live_bytes AS before_bytes,
            sum(live_bytes) OVER () AS all_bytes,
            row_number() OVER oldest_first AS place
        FROM cairn.physical_files
        WHERE job_id = :job_id AND status = 'SEALED' AND live_segments > 0
        WINDOW oldest_first AS (
            ORDER BY coalesce(verified_at, sealed_at, created_at), file_id
        )
    ) AS f
    WHERE f.before_bytes < f.all_bytes * CAST(:percent AS double precision) / 100
    ORDER BY f.place
""")


def sample_of_files(connection: Connection, job_id: str, *, percent: float) -> list[UUID]:
    """Returns files with this share of a job's live bytes, a file more at most.

    Those come first that were read longest ago. So with one call a day each byte is read once in
    100 / `percent` days, or dies before.
    """
    rows = connection.execute(_SAMPLE, {"job_id": job_id, "percent": percent})
    return [row.file_id for row in rows]


def known_damage(connection: Connection, job_id: str) -> list[UUID]:
    """Returns the files of a job with segments that are known as damaged and still needed."""
    found = DAMAGED_SEGMENTS.c
    query = select(found.file_id).where(found.job_id == job_id).distinct()
    return list(connection.scalars(query.order_by(found.file_id)))


_OF_JOB = text("""
    SELECT * FROM cairn.v_damaged_segments WHERE job_id = :job_id
    ORDER BY path, offset_bytes, segment_id
""")


def damaged_segments(connection: Connection, job_id: str) -> list[Mapping[str, Any]]:
    """Returns the rows of `v_damaged_segments` of a job, by file and place."""
    return [dict(row) for row in connection.execute(_OF_JOB, {"job_id": job_id}).mappings()]


# Without waiting: a batch may be adding to one of them. It is read again by a later scrub, then.
_LOCKED = text("""
    SELECT file_id FROM cairn.physical_files
    WHERE file_id = ANY (:file_ids) AND status = 'SEALED'
    ORDER BY file_id
    FOR NO KEY UPDATE SKIP LOCKED
""").bindparams(_FILE_IDS)


def record_scrubbed(
    connection: Connection,
    job_id: str,
    *,
    file_ids: Sequence[UUID],
    damage: Sequence[FoundDamage],
    whole_segments: Sequence[UUID],
) -> Recorded:
    """Records that the live segments of some files were read, and what was found.

    What has died since it was read is in the way of nobody, and is shown by no view. Doing it again
    changes nothing but the times.
    """
    if damage:
        _upsert(connection, job_id, damage)
    resolved = connection.execute(
        update(DamagedSegment)
        .where(
            DamagedSegment.file_id == any_uuid(file_ids),
            DamagedSegment.segment_id == any_uuid(whole_segments),
            DamagedSegment.resolved_at.is_(None),
        )
        .values(resolved_at=func.now())
    ).rowcount
    verified = list(connection.scalars(_LOCKED, {"file_ids": list(file_ids)}))
    if verified:
        connection.execute(
            update(PhysicalFile)
            .where(PhysicalFile.file_id == any_uuid(verified))
            .values(verified_at=func.now())
        )
    return Recorded(len(damage), resolved)


def _upsert(connection: Connection, job_id: str, damage: Sequence[FoundDamage]) -> None:
    found = insert(DamagedSegment).values(
        [
            {
                "file_id": one.file_id,
                "segment_id": one.segment_id,
                "job_id": job_id,
                "damage": one.damage,
            }
            # In one order, so that two scrubs do not deadlock.
            for one in sorted(damage, key=lambda one: (one.file_id, one.segment_id))
        ]
    )
    connection.execute(
        found.on_conflict_do_update(
            index_elements=[DamagedSegment.file_id, DamagedSegment.segment_id],
            set_={"damage": found.excluded.damage, "seen_at": func.now(), "resolved_at": None},
        )
    )


def newest_whole_checkpoint(connection: Connection, job_id: str) -> int | None:
    """Returns the newest confirmed checkpoint that needs no damaged segment.

    None where there is none, and where nothing is damaged.
    """
    return connection.scalar(newest_whole(job_id))


def _is_needed(job_id: str) -> tuple[Any, ...]:
    return (
        PhysicalFile.job_id == job_id,
        PhysicalFile.status == FileStatus.SEALED,
        PhysicalFile.live_segments > 0,
    )
