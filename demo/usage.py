"""What a job keeps at one moment: by the metastore, and by a listing of its storage."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from cairn.errors import CairnError
from cairn.layout import generation_of
from cairn.storage import open_store
from metastore.enums import CheckpointStatus, FileStatus
from metastore.models import Checkpoint, Job, PhysicalFile

IN_STORAGE = (FileStatus.SEALED, FileStatus.CONDEMNED)


class StorageDiffersError(CairnError):
    """Storage does not hold what the metastore says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Whole checkpoints, files and bytes of a job.

    Of the listed bytes, `uncommitted_bytes` are in no checkpoint: a killed process wrote them and
    committed nothing.
    """

    checkpoints: int
    files: int
    size_bytes: int
    listed_files: int
    listed_bytes: int
    uncommitted_files: int
    uncommitted_bytes: int


def usage(connection: Connection, job: str) -> Usage:
    """Returns what a job keeps while nothing writes or deletes.

    Raises:
        StorageDiffersError: an object is missing, too short, or unknown to the metastore.
    """
    job_id, storage = connection.execute(
        select(Job.job_id, Job.storage).where(Job.name == job)
    ).one()
    rows = connection.execute(
        select(PhysicalFile.path, PhysicalFile.status, PhysicalFile.size_bytes).where(
            PhysicalFile.job_id == job_id, PhysicalFile.status != FileStatus.DELETED
        )
    ).all()
    recorded = {row.path: int(row.size_bytes) for row in rows if row.status in IN_STORAGE}
    listed = {
        object.path: object.size_bytes
        for object in open_store(storage).list(f"{job_id}/")
        if generation_of(object.path) is None
    }
    for path, size_bytes in recorded.items():
        if listed.get(path, -1) < size_bytes:
            raise StorageDiffersError(
                f"{path} has {size_bytes} bytes by the metastore and {listed.get(path)} in storage",
                job=job,
            )
    if unknown := listed.keys() - {row.path for row in rows}:
        raise StorageDiffersError(f"the metastore does not know {sorted(unknown)}", job=job)
    checkpoints = connection.execute(
        select(func.count())
        .select_from(Checkpoint)
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.status.in_([CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED]),
        )
    ).scalar_one()
    size_bytes, listed_bytes = sum(recorded.values()), sum(listed.values())
    return Usage(
        checkpoints=checkpoints,
        files=len(recorded),
        size_bytes=size_bytes,
        listed_files=len(listed),
        listed_bytes=listed_bytes,
        uncommitted_files=len(listed) - len(recorded),
        uncommitted_bytes=listed_bytes - size_bytes,
    )
