"""Files that a maintenance run writes, under its lease and in a directory of its own.

Not under a run of the job: a restart of the job fences that, and maintenance continues. Lock order:
the job, then the maintenance run's row, then the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from cairn.catalog.job.directories import claim_directories
from cairn.catalog.job.fencing import lock_job
from cairn.catalog.maintenance.leases import require_lease
from cairn.handles import DirectoryHandle
from cairn.layout import maintenance_directory, maintenance_file
from metastore.enums import Scope
from metastore.models import PhysicalFile


@dataclass(frozen=True, slots=True)
class LeaseRef:
    """A maintenance run on a job, and the process that holds its lease: the fencing token."""

    job_id: str
    run_id: UUID
    holder: UUID


def intend_leased_file(connection: Connection, lease: LeaseRef, file_id: UUID) -> str:
    """Records that a file of a maintenance run is about to be written; returns its path.

    Again with the same id, as after a lost answer: changes nothing.

    Raises:
        FencedError: the process does not hold the lease any more, or the job was dropped.
    """
    # Shared, as a batch's intent is: its epoch stays that of a run that there is.
    job = lock_job(connection, lease.job_id, exclusive=False)
    require_lease(connection, lease.run_id, lease.holder)
    run_id = str(lease.run_id)
    directory = DirectoryHandle(
        path=maintenance_directory(lease.job_id, run_id), scope=Scope.MAINTENANCE
    )
    claim_directories(connection, lease.job_id, job.current_epoch, [directory])
    path = maintenance_file(lease.job_id, run_id, str(file_id))
    connection.execute(
        insert(PhysicalFile)
        .values(
            file_id=file_id,
            job_id=lease.job_id,
            epoch=job.current_epoch,
            path=path,
            scope=Scope.MAINTENANCE,
            maintenance_run_id=lease.run_id,
        )
        .on_conflict_do_nothing(index_elements=[PhysicalFile.file_id])
    )
    return path
