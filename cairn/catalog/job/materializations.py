"""What materializations were made, for metrics; what they made is in `segments`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, func, update
from sqlalchemy.dialects.postgresql import insert

from cairn.batch_ref import BatchRef
from cairn.catalog.job.fencing import require_epoch
from cairn.handles import SegmentHandle
from metastore.enums import SegmentKind
from metastore.models import Materialization


@dataclass(frozen=True, slots=True)
class Materialized:
    """What one materialization has written."""

    kind: SegmentKind
    as_of_checkpoint: int
    segments: int
    entries: int
    size_bytes: int

    @classmethod
    def of(cls, handles: Sequence[SegmentHandle]) -> Materialized:
        """Returns the sums over what was written, which is at least one segment."""
        return cls(
            handles[0].kind,
            handles[0].as_of_checkpoint,
            len(handles),
            sum(handle.entries for handle in handles),
            sum(handle.size_bytes for handle in handles),
        )


def record_start(
    connection: Connection, batch: BatchRef, subtask: int, materialization_id: UUID
) -> None:
    """Adds the row of a materialization.

    Raises:
        FencedError: a newer run has begun a batch.
    """
    require_epoch(connection, batch)
    connection.execute(
        insert(Materialization)
        .values(
            materialization_id=materialization_id,
            job_id=batch.job_id,
            epoch=batch.epoch,
            subtask=subtask,
        )
        .on_conflict_do_nothing(index_elements=[Materialization.materialization_id])
    )


def record_end(
    connection: Connection, materialization_id: UUID, made: Materialized | None, error: str | None
) -> None:
    """Says how a materialization ended; `made` is None if there was nothing to write."""
    values: dict[str, object] = {"finished_at": func.clock_timestamp(), "error": error}
    if made is not None:
        values |= {
            "kind": made.kind,
            "as_of_checkpoint": made.as_of_checkpoint,
            "segments": made.segments,
            "entries": made.entries,
            "size_bytes": made.size_bytes,
        }
    connection.execute(
        update(Materialization)
        .where(Materialization.materialization_id == materialization_id)
        .values(**values)
    )
