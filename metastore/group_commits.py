"""The table of group commits, and the views that unfold its rows to segments and acks."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import INT4MULTIRANGE, Range
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from metastore.columns import SCHEMA, TYPES, Base, enum_of, one_of
from metastore.enums import CommitStatus, SegmentKind, SegmentStatus


class GroupCommit(Base):
    """One row per group commit and file that it wrote; one without a file if it wrote none.

    Its acks are in the first of these rows. The columns of an ack, and those of a segment, are
    arrays of one length: what they say at one place belongs together.
    """

    __tablename__ = "group_commits"
    __table_args__ = (
        ForeignKeyConstraint(
            ["job_id", "checkpoint_id"],
            ["cairn.checkpoints.job_id", "cairn.checkpoints.checkpoint_id"],
        ),
        Index(None, "file_id", postgresql_where=text("file_id IS NOT NULL")),
        Index(None, "job_id", "checkpoint_id"),
        Index(
            "ix_group_commits__unchanged",
            "job_id",
            "checkpoint_id",
            postgresql_where=text("status = 'LIVE' AND key_groups = '{}'"),
        ),
        Index(
            "ix_group_commits__live",
            "job_id",
            "checkpoint_id",
            postgresql_where=text("status = 'LIVE'"),
        ),
        one_of("status", CommitStatus),
        CheckConstraint(
            "cardinality(attempt_ids) = cardinality(subtasks)"
            " AND cardinality(task_attempts) = cardinality(subtasks)"
            " AND cardinality(input_rows) = cardinality(subtasks)"
            " AND cardinality(restore_ms) = cardinality(subtasks)"
            " AND (late_rows IS NULL OR cardinality(late_rows) = cardinality(subtasks))"
            " AND (max_event_ms IS NULL OR cardinality(max_event_ms) % cardinality(subtasks) = 0)",
            name="acks_aligned",
        ),
        CheckConstraint(
            "cardinality(segment_subtasks) = cardinality(segment_ids)"
            " AND cardinality(offsets_bytes) = cardinality(segment_ids)"
            " AND cardinality(sizes_bytes) = cardinality(segment_ids)"
            " AND octet_length(sha256s) = 32 * cardinality(segment_ids)"
            " AND cardinality(entries) = cardinality(segment_ids)"
            " AND (segment_kinds IS NULL OR cardinality(segment_kinds) = cardinality(segment_ids))"
            " AND (sequence_numbers IS NULL"
            " OR cardinality(sequence_numbers) = cardinality(segment_ids))"
            " AND (index_sizes_bytes IS NULL"
            " OR cardinality(index_sizes_bytes) = cardinality(segment_ids))"
            " AND octet_length(coalesce(index_sha256s, ''))"
            " = 32 * coalesce(cardinality(index_sizes_bytes), 0)"
            " AND (file_id IS NULL) = (cardinality(segment_ids) = 0)",
            name="segments_aligned",
        ),
        CheckConstraint("0 <= ALL (offsets_bytes) AND 0 < ALL (sizes_bytes)", name="ranges_sane"),
        CheckConstraint(
            "segment_kinds <@ ARRAY['changelog', 'operator', 'channel']", name="kinds_known"
        ),
    )
    commit_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    checkpoint_id: Mapped[int]
    file_id: Mapped[UUID | None] = mapped_column(ForeignKey("cairn.physical_files.file_id"))
    tm_id: Mapped[str]
    parallelism: Mapped[int] = mapped_column(Integer)
    """Of the run; with `max_parallelism` it gives the key groups of each subtask."""
    max_parallelism: Mapped[int] = mapped_column(Integer)
    status: Mapped[CommitStatus] = mapped_column(
        enum_of(CommitStatus), server_default=CommitStatus.LIVE
    )
    subtasks: Mapped[list[int]] = mapped_column(ARRAY(Integer), server_default="{}")
    """The acks, of these subtasks."""
    attempt_ids: Mapped[list[UUID]] = mapped_column(ARRAY(Uuid), server_default="{}")
    """The attempts whose changes count."""
    task_attempts: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), server_default="{}")
    """Spark's task attempt ids: they grow within an application, so the latest is known."""
    input_rows: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), server_default="{}")
    late_rows: Mapped[list[int] | None] = mapped_column(ARRAY(BigInteger))
    """Rows dropped because the watermark had passed them, part of `input_rows`; null: none."""
    max_event_ms: Mapped[list[int | None] | None]
    """Latest event times, as many of each subtask as there are inputs; null: none."""
    restore_ms: Mapped[list[int]] = mapped_column(ARRAY(Integer), server_default="{}")
    """How long each subtask took to bring its local state to the parent."""
    replaced_subtasks: Mapped[list[int]] = mapped_column(ARRAY(Integer), server_default="{}")
    """Those of which a later attempt was acknowledged: what is said of them here is void."""
    segment_ids: Mapped[list[UUID]] = mapped_column(ARRAY(Uuid), server_default="{}")
    """The segments in the file."""
    segment_subtasks: Mapped[list[int]] = mapped_column(ARRAY(Integer), server_default="{}")
    segment_kinds: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    """Null: all are changelog."""
    sequence_numbers: Mapped[list[int] | None] = mapped_column(ARRAY(SmallInteger))
    """Places among a subtask's changelog segments of the checkpoint; null: each is its only one."""
    offsets_bytes: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), server_default="{}")
    sizes_bytes: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), server_default="{}")
    sha256s: Mapped[bytes] = mapped_column(server_default="")
    """32 bytes of each."""
    index_sizes_bytes: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))
    """Of their indexes by key group, 0: has none; null: none has one."""
    index_sha256s: Mapped[bytes | None]
    """32 bytes of each, zeros where there is no index; null: none has one."""
    entries: Mapped[list[int]] = mapped_column(ARRAY(Integer), server_default="{}")
    key_groups: Mapped[list[Range[int]]] = mapped_column(INT4MULTIRANGE)
    """Of all its changelog, set by a trigger: bases that cover them release it."""
    uploaded_files: Mapped[int | None] = mapped_column(Integer)
    """This and what follows: see `UploadStats`. Null: the group commit uploaded nothing."""
    uploaded_segments: Mapped[int | None] = mapped_column(Integer)
    uploaded_bytes: Mapped[int | None]
    requests: Mapped[int | None] = mapped_column(Integer)
    retries: Mapped[int | None] = mapped_column(Integer)
    hedges: Mapped[int | None] = mapped_column(Integer)
    hedge_wins: Mapped[int | None] = mapped_column(Integer)
    failed_attempts: Mapped[int | None] = mapped_column(Integer)
    winning_attempt: Mapped[int | None] = mapped_column(Integer)
    failed_uploads: Mapped[int | None] = mapped_column(Integer)
    queue_size: Mapped[int | None] = mapped_column(Integer)
    wait_ms: Mapped[int | None] = mapped_column(Integer)
    upload_ms: Mapped[int | None] = mapped_column(Integer)
    longest_request_ms: Mapped[int | None] = mapped_column(Integer)
    pool_wait_ms: Mapped[int | None] = mapped_column(Integer)
    acked_at: Mapped[datetime] = mapped_column(server_default=func.now())


class View(DeclarativeBase):
    """Declarative base of views: to select from, not to write to."""

    # Apart from the tables', which migrations are compared with.
    metadata = MetaData(schema=SCHEMA)
    type_annotation_map: ClassVar = TYPES


class Segment(View):
    """One row per segment, of a group commit or placed. `views/segments.sql` is its text."""

    __tablename__ = "segments"
    segment_id: Mapped[UUID] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    file_id: Mapped[UUID]
    kind: Mapped[SegmentKind] = mapped_column(enum_of(SegmentKind))
    subtask: Mapped[int]
    key_groups: Mapped[Range[int]]
    offset_bytes: Mapped[int]
    size_bytes: Mapped[int]
    sha256: Mapped[str]
    entries: Mapped[int]
    first_checkpoint: Mapped[int]
    as_of_checkpoint: Mapped[int]
    sequence_number: Mapped[int]
    released_checkpoint: Mapped[int | None]
    status: Mapped[SegmentStatus] = mapped_column(enum_of(SegmentStatus))
    created_at: Mapped[datetime]


class SubtaskAck(View):
    """One row per checkpoint and subtask: the attempt that counts. See `GroupCommit`."""

    __tablename__ = "subtask_acks"
    job_id: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[int] = mapped_column(primary_key=True)
    subtask: Mapped[int] = mapped_column(primary_key=True)
    attempt_id: Mapped[UUID]
    task_attempt: Mapped[int]
    tm_id: Mapped[str]
    input_rows: Mapped[int]
    late_rows: Mapped[int]
    max_event_ms: Mapped[list[int | None]]
    restore_ms: Mapped[int]
    acked_at: Mapped[datetime]
