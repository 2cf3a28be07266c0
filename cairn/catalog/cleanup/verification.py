"""What the metastore knows of a job's objects, to be compared with what is in storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ARRAY, Connection, Text, Uuid, any_, bindparam, literal, select, text

from metastore.enums import FileStatus
from metastore.models import PhysicalFile


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """The row of a file. `size_bytes` is what was sealed of it, None where nothing was."""

    file_id: UUID
    path: str
    status: FileStatus
    size_bytes: int | None
    live_segments: int

    @property
    def needs_bytes(self) -> int:
        """How many bytes the object must have; 0 where it may be missing."""
        is_needed = self.status is FileStatus.SEALED and self.live_segments > 0
        return (self.size_bytes or 0) if is_needed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSegment:
    """The byte range of a LIVE segment, and the SHA-256 in hex that was recorded for it."""

    segment_id: UUID
    file_id: UUID
    path: str
    offset_bytes: int
    size_bytes: int
    sha256: str


_COLUMNS = (
    PhysicalFile.file_id,
    PhysicalFile.path,
    PhysicalFile.status,
    PhysicalFile.size_bytes,
    PhysicalFile.live_segments,
)


def files_after(connection: Connection, job_id: str, *, after: str, limit: int) -> list[KnownFile]:
    """Returns up to `limit` files of a job that are not DELETED, by path in order of bytes.

    They follow the path `after`. Those that history still has are read and passed over.
    """
    rows = connection.execute(
        select(*_COLUMNS)
        .where(
            PhysicalFile.job_id == job_id,
            PhysicalFile.path > after,
            PhysicalFile.status != FileStatus.DELETED,
        )
        .order_by(PhysicalFile.path)
        .limit(limit)
    )
    return [KnownFile(**row) for row in rows.mappings()]


def files_at(connection: Connection, job_id: str, paths: Sequence[str]) -> dict[str, KnownFile]:
    """Returns the files of a job at some paths, DELETED ones too, by path."""
    rows = connection.execute(
        select(*_COLUMNS).where(
            PhysicalFile.job_id == job_id,
            PhysicalFile.path == any_(literal(list(paths), ARRAY(Text))),
        )
    )
    return {row["path"]: KnownFile(**row) for row in rows.mappings()}


# First the segments, by an index: asked for each file, the view would read all commits again.
_LIVE_SEGMENTS = text("""
    WITH live AS MATERIALIZED (
        SELECT segment_id, file_id, offset_bytes, size_bytes, sha256 FROM cairn.segments
        WHERE file_id = ANY (:file_ids) AND status = 'LIVE'
    )
    SELECT s.segment_id, s.file_id, f.path, s.offset_bytes, s.size_bytes, s.sha256
    FROM live AS s JOIN cairn.physical_files AS f ON f.file_id = s.file_id
    WHERE f.status = 'SEALED'
    ORDER BY f.path, s.offset_bytes
""").bindparams(bindparam("file_ids", type_=ARRAY(Uuid())))


def live_segments_of(connection: Connection, file_ids: Sequence[UUID]) -> list[LiveSegment]:
    """Returns the LIVE segments of SEALED files, by path and offset."""
    rows = connection.execute(_LIVE_SEGMENTS, {"file_ids": list(file_ids)})
    return [LiveSegment(**row) for row in rows.mappings()]
