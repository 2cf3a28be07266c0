"""The demo's result, read from the metastore and from storage."""

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
from demo.usage import Usage, usage
from metastore.enums import CheckpointStatus
from metastore.group_commits import Segment, SubtaskAck
from metastore.models import Checkpoint, Job, PhysicalFile, StateVariable

NATIVE_FORMULA = (
    "2 x partitions x batches + 4: per partition and batch one changelog file and its checksum "
    "file, plus the base of 4: operator metadata and state schema with a checksum file each. "
    "RocksDB's snapshots would come on top; the offset and commit logs are left out on both sides"
)

_REMOVED = {
    "checkpoints": "subsumed_checkpoints",
    "files": "deleted_files",
    "size_bytes": "freed_bytes",
}
"""What the DAG run calls the change of a fact of `Usage`."""

_ROWS = {
    "checkpoints": "checkpoints",
    "files": "files, by the metastore",
    "size_bytes": "bytes, by the metastore",
    "listed_files": "files, listed in storage",
    "listed_bytes": "bytes, listed in storage",
    "uncommitted_bytes": "of these, never committed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The demo's result.

    `mismatches` counts keys whose count is not the plain Python one. `cleanup` has the sums that
    the DAG run returned. `batches` are those with input.
    """

    batches: int
    words: int
    windows: int
    keys: int
    mismatches: int
    killed_in_checkpoint: int
    restore_after_kill_ms: int
    physical_files_created: int
    segments_created: int
    native_state_files_4_partitions: int
    native_state_files_200_partitions: int
    native_state_files_formula: str
    before_cleanup: Usage
    cleanup: dict[str, int]
    after_cleanup: Usage

    def problems(self) -> list[str]:
        """Returns in sentences what is wrong; empty if the demo showed what it promises."""
        found = [f"{self.mismatches} counts are wrong"] if self.mismatches else []
        for fact, name in _REMOVED.items():
            removed = getattr(self.before_cleanup, fact) - getattr(self.after_cleanup, fact)
            if self.cleanup[name] <= 0:
                found.append(f"the cleanup had nothing to do: {name} is {self.cleanup[name]}")
            if removed != self.cleanup[name]:
                found.append(f"{name} is {self.cleanup[name]} by the DAG run, {removed} in fact")
        return found

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain values."""
        return asdict(self)

    def print(self, console: Console) -> None:
        """Prints the report as two tables."""
        table = Table(title="The counts", show_header=False)
        for name, value in self.to_json().items():
            if isinstance(value, int):
                table.add_row(name.replace("_", " "), f"{value:,}")
        console.print(table)
        table = Table("", "before", "after", "removed", title="The cleanup by Airflow")
        for fact, name in _ROWS.items():
            before, after = getattr(self.before_cleanup, fact), getattr(self.after_cleanup, fact)
            table.add_row(name, f"{before:,}", f"{after:,}", f"{before - after:,}")
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
    expected: Counter[tuple[str, str]],
    killed_in: int,
    before: Usage,
    cleanup: dict[str, int],
) -> DemoReport:
    """Returns the report of a demo whose cleanup has just ended."""
    counted = counted_words(connection, job)
    job_id = connection.execute(select(Job.job_id).where(Job.name == job)).scalar_one()
    batches = connection.execute(
        select(func.count(Checkpoint.batch_id.distinct()))
        .join(
            SubtaskAck,
            and_(
                SubtaskAck.job_id == Checkpoint.job_id,
                SubtaskAck.checkpoint_id == Checkpoint.checkpoint_id,
            ),
        )
        .where(Checkpoint.job_id == job_id, SubtaskAck.input_rows > 0)
    ).scalar_one()
    files = connection.execute(
        select(func.count(PhysicalFile.sealed_at)).where(PhysicalFile.job_id == job_id)
    ).scalar_one()
    segments = connection.execute(
        select(func.count()).select_from(Segment).where(Segment.job_id == job_id)
    ).scalar_one()
    return DemoReport(
        batches=batches,
        words=sum(counted.values()),
        windows=len({window for _, window in counted}),
        keys=len(counted),
        mismatches=sum(counted[key] != expected[key] for key in counted.keys() | expected.keys()),
        killed_in_checkpoint=killed_in,
        restore_after_kill_ms=_restore_ms(connection, job_id, killed_in),
        physical_files_created=files,
        segments_created=segments,
        native_state_files_4_partitions=2 * 4 * batches + 4,
        native_state_files_200_partitions=2 * 200 * batches + 4,
        native_state_files_formula=NATIVE_FORMULA,
        before_cleanup=before,
        cleanup=cleanup,
        after_cleanup=usage(connection, job),
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
