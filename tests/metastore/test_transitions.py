"""The ways that a status may go, and what of a row never changes, whoever asks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.dialects.postgresql import Range

from cairn.errors import RefusedError
from metastore.enums import (
    CheckpointStatus,
    CommitStatus,
    DirectoryStatus,
    FileStatus,
    MaintenanceStatus,
    Scope,
    SegmentStatus,
)
from metastore.models import (
    Base,
    Checkpoint,
    Deletion,
    Directory,
    GroupCommit,
    Job,
    MaintenanceRun,
    PhysicalFile,
    PlacedSegment,
    Run,
)
from tests.metastore.rows import Rows

LEGAL: dict[type[Base], set[tuple[str, str]]] = {
    Checkpoint: {
        *pairwise(["IN_PROGRESS", "COMPLETED", "CONFIRMED", "SUBSUMED"]),
        ("IN_PROGRESS", "ABORTED"),
        ("COMPLETED", "ABORTED"),
    },
    PhysicalFile: {
        *pairwise(["WRITING", "SEALED", "CONDEMNED", "DELETED"]),
        ("WRITING", "CONDEMNED"),
    },
    PlacedSegment: {("LIVE", "DEAD")},
    GroupCommit: {("LIVE", "DEAD"), ("LIVE", "ABORTED")},
    Directory: {
        *pairwise(["CLAIMED", "UNCLAIMED", "DELETED"]),
        ("UNCLAIMED", "CLAIMED"),
        ("DELETED", "CLAIMED"),
    },
    MaintenanceRun: {
        *(("PLANNED", status) for status in ("RUNNING", "APPLIED", "FAILED", "REFUSED")),
        *(("RUNNING", status) for status in ("APPLIED", "FAILED", "REFUSED")),
        ("REFUSED", "PLANNED"),
        ("REFUSED", "FAILED"),
    },
}
STATUSES: dict[type[Base], list[str]] = {
    Checkpoint: list(CheckpointStatus),
    PhysicalFile: list(FileStatus),
    PlacedSegment: list(SegmentStatus),
    GroupCommit: list(CommitStatus),
    Directory: list(DirectoryStatus),
    MaintenanceRun: list(MaintenanceStatus),
}
STEPS = [
    pytest.param(table, old, new, id=f"{table.__tablename__}-{old}-{new}")
    for table, statuses in STATUSES.items()
    for old in map(str, statuses)
    for new in map(str, statuses)
    if old != new
]


def make(rows: Rows, table: type[Base], status: str) -> Any:
    """Makes a row that got to a status legally; returns the condition that finds it."""
    if table is Checkpoint:
        rows.checkpoint(1, status)
        return Checkpoint.checkpoint_id == 1
    if table is PhysicalFile:
        return PhysicalFile.file_id == rows.file(status)
    if table is Directory:
        return Directory.path == rows.directory(status)
    if table is PlacedSegment:
        return PlacedSegment.segment_id == rows.segment(rows.file(), status=status)
    if table is GroupCommit:
        rows.checkpoint(1)
        which = GroupCommit.commit_id == rows.packed(rows.file(), 1, 0)
        if status != "LIVE":
            rows.set_status(GroupCommit, which, status)
        return which
    return MaintenanceRun.maintenance_run_id == rows.maintenance_run(status)


@pytest.mark.parametrize(("table", "old", "new"), STEPS)
def test_a_status_changes_only_in_the_legal_ways(
    rows: Rows, table: type[Base], old: str, new: str
) -> None:
    which = make(rows, table, old)
    step = update(table).where(which, rows.own(table)).values(status=new, **besides(table, new))
    if (old, new) in LEGAL[table]:
        rows.catalog.run("testing", lambda c: rows.unguarded(c, table.__tablename__, step))
        [row] = rows.execute(select(table.__table__.c.status).where(which, rows.own(table)))
        assert row["status"] == new
    else:
        with pytest.raises(RefusedError, match=f"{table.__tablename__}: .* from {old} to {new} "):
            rows.execute(step)


def besides(table: type[Base], status: str) -> dict[str, Any]:
    """Returns what a row of a status has to have."""
    if table is PhysicalFile and status == "SEALED":
        return {"size_bytes": 1000}
    if table is MaintenanceRun and status == "RUNNING":
        return {"holder": uuid4(), "leased_until": text("now() + interval '1 hour'")}
    return {}


@pytest.mark.parametrize(
    ("table", "status"),
    [
        pytest.param(table, str(status), id=f"{table.__tablename__}-{status}")
        for table, statuses in STATUSES.items()
        for status in statuses[1:]
        if (table, status) != (MaintenanceRun, "REFUSED")
    ],
)
def test_new_row_starts_in_the_first_status(rows: Rows, table: type[Base], status: str) -> None:
    make(rows, table, str(STATUSES[table][0]))
    [row] = rows.execute(select(table.__table__).where(rows.own(table)))
    given = {c.name: row[c.name] for c in table.__table__.columns if c.computed is None}
    again = given | {"status": status, **FRESH[table]()}
    with pytest.raises(RefusedError, match=f"{table.__tablename__}: .* cannot be {status} "):
        rows.execute(insert(table).values(again))


FRESH: dict[type[Base], Any] = {
    Checkpoint: lambda: {"checkpoint_id": 2, "batch_id": 2},
    PhysicalFile: lambda: {"file_id": uuid4(), "size_bytes": 1},
    PlacedSegment: lambda: {"segment_id": uuid4()},
    GroupCommit: lambda: {"commit_id": uuid4(), "subtasks": [1], "segment_subtasks": [1]},
    Directory: dict,
    MaintenanceRun: lambda: {"maintenance_run_id": uuid4()},
}
CHANGES: list[tuple[type[Base], dict[str, Any]]] = [
    (Job, {"job_id": "other"}),
    (Job, {"name": "other"}),
    (Job, {"storage": "s3://elsewhere"}),
    (Job, {"max_parallelism": 16}),
    (Job, {"key_schema": {}}),
    (Run, {"epoch": 9}),
    (Run, {"run_id": UUID(int=9)}),
    (Run, {"parallelism": 9}),
    (Checkpoint, {"checkpoint_id": 9}),
    (Checkpoint, {"epoch": 9}),
    (Checkpoint, {"batch_id": 9}),
    (Checkpoint, {"parallelism": 9}),
    (Checkpoint, {"parent_checkpoint": 9}),
    (PhysicalFile, {"file_id": UUID(int=9)}),
    (PhysicalFile, {"job_id": "other"}),
    (PhysicalFile, {"path": "other"}),
    (PhysicalFile, {"scope": Scope.SHARED}),
    (PhysicalFile, {"size_bytes": 9}),
    (Directory, {"path": "other"}),
    (Directory, {"scope": Scope.SHARED}),
    (Directory, {"subtask": 9}),
    (Directory, {"parallelism": 9}),
    (Directory, {"tm_id": "other"}),
    (PhysicalFile, {"batch_id": 9}),
    (PhysicalFile, {"retry_of": UUID(int=9)}),
    (PhysicalFile, {"maintenance_run_id": UUID(int=9)}),
    (GroupCommit, {"checkpoint_id": 9}),
    (GroupCommit, {"requests": 9}),
    (GroupCommit, {"subtasks": [1]}),
    (GroupCommit, {"sizes_bytes": [9]}),
    (GroupCommit, {"key_groups": []}),
    (PlacedSegment, {"segment_id": UUID(int=9)}),
    (PlacedSegment, {"file_id": UUID(int=9)}),
    (PlacedSegment, {"key_groups": Range(0, 8)}),
    (PlacedSegment, {"offset_bytes": 9}),
    (PlacedSegment, {"size_bytes": 9}),
    (PlacedSegment, {"sha256": "ff"}),
    (PlacedSegment, {"first_checkpoint": 9}),
    (PlacedSegment, {"as_of_checkpoint": 9}),
    (MaintenanceRun, {"plan": {"files": ["all"]}}),
    (MaintenanceRun, {"plan_sha256": "ff"}),
    (Deletion, {"path": "other"}),
]


@pytest.mark.parametrize(
    ("table", "change"),
    [pytest.param(t, c, id=f"{t.__tablename__}-{next(iter(c))}") for t, c in CHANGES],
)
def test_identity_never_changes(rows: Rows, table: type[Base], change: dict[str, Any]) -> None:
    rows.checkpoint(1)
    rows.ack(1, 0, 5)
    rows.upload(1)
    rows.segment(rows.file())
    rows.packed(rows.file(), 1, 1)
    rows.directory()
    rows.deletion(rows.file("CONDEMNED"))
    what = "all but" if table is GroupCommit else next(iter(change))
    with pytest.raises(RefusedError, match=f"{table.__tablename__}: .*{what}"):
        rows.execute(update(table).where(rows.own(table)).values(change))


def test_refusal_names_the_row(rows: Rows) -> None:
    rows.checkpoint(7, "SUBSUMED")
    with pytest.raises(RefusedError, match=f"checkpoint id 7, epoch 1, job id {rows.job_id}"):
        rows.set_status(Checkpoint, Checkpoint.checkpoint_id == 7, "CONFIRMED")
