"""What came of the demo, read from the metastore and from storage."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, and_, func, select

from cairn.catalog.job.segments import segments_at
from cairn.keygroups import range_of
from cairn.segments.snapshot import snapshot
from cairn.state.codec import TupleCodec
from cairn.state.entries import split
from cairn.storage import open_store
from metastore.enums import CheckpointStatus, FileStatus
from metastore.models import Checkpoint, Job, PhysicalFile, Segment, StateVariable, SubtaskAck

NATIVE_FORMULA = (
    "2 x partitions x batches + 4: per partition and batch one changelog file and its checksum "
    "file, plus the base of 4: operator metadata and state schema with a checksum file each. "
    "RocksDB's snapshots would come on top; the offset and commit logs are left out on both sides"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The demo's result; `mismatches` counts keys whose count is not the plain Python one."""

    batches: int
    checkpoints: dict[str, int]
    words: int
    windows: int
    keys: int
    mismatches: int
    physical_files_created: int
    segments_created: int
    files_deleted: int
    physical_bytes: int
    live_bytes: int
    space_amplification: float
    restore_after_kill_ms: int
    killed_in_checkpoint: int
    native_state_files_4_partitions: int
    native_state_files_200_partitions: int
    native_state_files_formula: str

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain values."""
        return asdict(self)

    def print(self, console: Console) -> None:
        """Prints the report as a table."""
        table = Table(title="What came of it", show_header=False)
        for name, value in self.to_json().items():
            shown = (
                ", ".join(f"{k} {v:,}" for k, v in value.items())
                if isinstance(value, dict)
                else value
            )
            table.add_row(
                name.replace("_", " "), f"{shown:,}" if isinstance(shown, int) else str(shown)
            )
        console.print(table)


def counted_words(connection: Connection, job: str) -> Counter[tuple[str, str]]:
    """Returns the count by word and start of window from the newest completed checkpoint."""
    row = connection.execute(select(Job.__table__).where(Job.name == job)).one()
    checkpoint_id, parallelism = connection.execute(
        select(Checkpoint.checkpoint_id, Checkpoint.parallelism)
        .where(
            Checkpoint.job_id == row.job_id,
            Checkpoint.status.in_([CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED]),
        )
        .order_by(Checkpoint.checkpoint_id.desc())
        .limit(1)
    ).one()
    variable = connection.execute(
        select(StateVariable.__table__).where(StateVariable.job_id == row.job_id)
    ).one()
    keys = TupleCodec(row.key_schema, name="key")
    values = TupleCodec(variable.value_schema, name=variable.name)
    store = open_store(row.storage)
    counts: Counter[tuple[str, str]] = Counter()
    for subtask in range(parallelism):
        key_groups = range_of(subtask, parallelism, row.max_parallelism)
        handles = segments_at(connection, row.job_id, checkpoint_id, key_groups)
        for entry_key, value in snapshot(store, handles, key_groups, job=job).items():
            key = keys.to_json(split(entry_key).key)
            counts[key["word"], key["window_start"]] = values.to_json(value)["n"]
    return counts


def make_report(
    connection: Connection,
    job: str,
    counted: Counter[tuple[str, str]],
    expected: Counter[tuple[str, str]],
    killed_in: int,
) -> DemoReport:
    """Returns the report of a finished demo."""
    job_id = connection.execute(select(Job.job_id).where(Job.name == job)).scalar_one()
    statuses = connection.execute(
        select(Checkpoint.status, func.count())
        .where(Checkpoint.job_id == job_id)
        .group_by(Checkpoint.status)
    )
    checkpoints = {status.value: count for status, count in statuses}
    batches = connection.execute(
        select(func.count(Checkpoint.batch_id.distinct())).where(Checkpoint.job_id == job_id)
    ).scalar_one()
    created, deleted, physical, live = connection.execute(
        select(
            func.count(PhysicalFile.sealed_at),
            func.count(PhysicalFile.deleted_at),
            func.sum(PhysicalFile.size_bytes).filter(PhysicalFile.status != FileStatus.DELETED),
            func.sum(PhysicalFile.live_bytes),
        ).where(PhysicalFile.job_id == job_id)
    ).one()
    physical_bytes, live_bytes = int(physical or 0), int(live or 0)
    segments = connection.execute(
        select(func.count()).select_from(Segment).where(Segment.job_id == job_id)
    ).scalar_one()
    return DemoReport(
        batches=batches,
        checkpoints=checkpoints,
        words=sum(counted.values()),
        windows=len({window for _, window in counted}),
        keys=len(counted),
        mismatches=sum(counted[key] != expected[key] for key in counted.keys() | expected.keys()),
        physical_files_created=created,
        segments_created=segments,
        files_deleted=deleted,
        physical_bytes=physical_bytes,
        live_bytes=live_bytes,
        space_amplification=round(physical_bytes / live_bytes, 3),
        restore_after_kill_ms=_restore_ms(connection, job_id, killed_in),
        killed_in_checkpoint=killed_in,
        native_state_files_4_partitions=2 * 4 * batches + 4,
        native_state_files_200_partitions=2 * 200 * batches + 4,
        native_state_files_formula=NATIVE_FORMULA,
    )


def _restore_ms(connection: Connection, job_id: str, killed_in: int) -> int:
    """Returns the longest that a subtask took to get its state back after the kill."""
    first = (
        select(func.min(Checkpoint.checkpoint_id))
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.checkpoint_id > killed_in,
            Checkpoint.status != CheckpointStatus.ABORTED,
        )
        .scalar_subquery()
    )
    return connection.execute(
        select(func.max(SubtaskAck.restore_ms)).where(
            and_(SubtaskAck.job_id == job_id, SubtaskAck.checkpoint_id == first)
        )
    ).scalar_one()
