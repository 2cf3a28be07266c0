"""Filling a metastore from manifests after its loss: the body of one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from sqlalchemy import Connection, func, or_, select, text
from sqlalchemy.dialects.postgresql import insert

from cairn.batch_ref import RunRef
from cairn.catalog.job.files import WrittenFile, seal_files
from cairn.catalog.job.segments import place_segments
from cairn.catalog.job.states import adopt_states
from cairn.catalog.savepoints.adopt import add_confirmed, add_copy
from cairn.catalog.savepoints.manifest_rows import manifest_handle
from cairn.errors import RefusedError
from cairn.handles import SegmentHandle
from cairn.manifest import Manifest, ManifestFile
from cairn.settings import Settings
from metastore.enums import PinKind, Scope
from metastore.models import Job, Pin, Run

LOST_CHECKPOINTS = 1_000_000
"""Ids that are left free: more batches than may have run since the newest checkpoint found."""

PIN_NAME = "rebuilt"

_OTHERS = text("""
    SELECT job_id FROM cairn.runs
    WHERE job_id <> :job_id AND run_id = ANY(CAST(:runs AS uuid[]))
    UNION ALL
    SELECT job_id FROM cairn.physical_files
    WHERE job_id <> :job_id AND file_id = ANY(CAST(:files AS uuid[]))
    UNION ALL
    SELECT job_id FROM cairn.placed_segments
    WHERE job_id <> :job_id AND segment_id = ANY(CAST(:segments AS uuid[]))
    LIMIT 1
""")


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """A manifest in storage whose files are all there; `data` are its bytes."""

    manifest: Manifest
    path: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltJob:
    """One job as its manifests have it, oldest checkpoint first.

    `sizes` are of all its files in bytes, by path. The highest epoch and checkpoint id are those
    that any path of the job names, so that none of them is given again.
    """

    storage: str
    manifests: tuple[FoundManifest, ...]
    sizes: Mapping[str, int]
    highest_epoch: int
    highest_checkpoint: int

    @property
    def newest(self) -> Manifest:
        """The newest checkpoint's manifest."""
        return self.manifests[-1].manifest

    def segments(self) -> list[tuple[str, int, SegmentHandle]]:
        """Returns file id, subtask and handle of each segment.

        One that a later checkpoint does not have any more was released after the last that does:
        at which id between them makes no difference to the checkpoints there are. One of an
        exclusive kind is of its own checkpoint alone.
        """
        found: dict[str, tuple[str, int, SegmentHandle]] = {}
        for one in self.manifests:
            is_newest = one.manifest is self.newest
            released = None if is_newest else one.manifest.checkpoint_id + 1
            for segment, (subtask, handle) in zip(
                one.manifest.segments, one.manifest.handles(), strict=True
            ):
                until = handle.released_checkpoint or released
                last = replace(handle, released_checkpoint=until)
                found[segment.segment_id] = segment.file_id, subtask, last
        return list(found.values())


def insert_job(connection: Connection, job: RebuiltJob, run_id: UUID) -> None:
    """Fills the metastore with a job, which can continue from its newest checkpoint.

    `run_id` is that of a run which stands for the rebuilding. Its epoch is the current one and
    higher than any that was given before, so that whoever still runs is fenced. Every checkpoint
    is pinned, because manifests do not tell which were.

    Raises:
        RefusedError: the metastore has a job of that name or id, or one with the same segments.
    """
    # The transaction again, after its answer was lost.
    if connection.scalar(select(Run.epoch).where(Run.run_id == run_id)) is not None:
        return
    newest = job.newest
    _refuse_ids_of_others(connection, job)
    epoch = _epoch(connection, job)
    inserted = connection.execute(
        insert(Job)
        .values(
            job_id=newest.job_id,
            name=newest.job,
            storage=job.storage,
            max_parallelism=newest.max_parallelism,
            # Manifests do not have it; the next run that begins sets it.
            num_retained=Settings().num_retained,
            key_schema=newest.key_schema,
            time_mode=newest.time_mode,
            query_id=newest.query_id or None,
            current_epoch=epoch,
            next_checkpoint_id=job.highest_checkpoint + LOST_CHECKPOINTS,
        )
        .on_conflict_do_nothing()
    )
    if not inserted.rowcount:
        refuse_known(connection, newest)
    # Each checkpoint's own run: its id is the lineage that local state is told by.
    made = {one.manifest.epoch: one.manifest for one in job.manifests}
    for run in made.values():
        _add_run(connection, run, run.epoch, UUID(run.run_id))
    _add_run(connection, newest, epoch, run_id)
    adopt_states(connection, newest.job_id, newest.job, newest.variables)
    ref = RunRef(job=newest.job, job_id=newest.job_id, epoch=epoch, run_id=str(run_id))
    # Before the checkpoints: no base is added to one that there is.
    _add_files(connection, job, ref)
    _add_checkpoints(connection, job)


def refuse_known(connection: Connection, newest: Manifest) -> None:
    """Refuses a job whose name or id the metastore has.

    Raises:
        RefusedError: it has.
    """
    is_known = or_(Job.name == newest.job, Job.job_id == newest.job_id)
    known = connection.execute(select(Job.name, Job.job_id).where(is_known)).first()
    if known is not None:
        raise RefusedError(
            f"the metastore has a job {known.name!r}, with the root {known.job_id}/, so "
            f"{newest.job_id}/ cannot be rebuilt there. Rebuild into an empty metastore, which "
            "`cairn db migrate` makes; of two roots of one name, move one out of the storage",
            job=newest.job,
        )


def _refuse_ids_of_others(connection: Connection, job: RebuiltJob) -> None:
    """Refuses a copy of another job's directory: rows are added once, so its would be left out."""
    manifests = [one.manifest for one in job.manifests]
    other = connection.scalar(
        _OTHERS,
        {
            "job_id": job.newest.job_id,
            "runs": list({one.run_id for one in manifests}),
            "files": list({file.file_id for one in manifests for file in one.files}),
            "segments": list({s.segment_id for one in manifests for s in one.segments}),
        },
    )
    if other is not None:
        raise RefusedError(
            f"its manifests name runs, files or segments of {other}/: one is a copy of the other. "
            "Move the copy out of the storage",
            job=job.newest.job,
        )


def _epoch(connection: Connection, job: RebuiltJob) -> int:
    """Returns an epoch above all that were given: the seconds since 1970 outrun any job's starts.

    Those count too that left no trace in storage.
    """
    clock_s = func.floor(func.extract("epoch", func.now()))
    return 1 + int(
        connection.execute(select(func.greatest(clock_s, job.highest_epoch))).scalar_one()
    )


def _add_run(connection: Connection, of: Manifest, epoch: int, run_id: UUID) -> None:
    connection.execute(
        insert(Run).values(
            job_id=of.job_id,
            epoch=epoch,
            run_id=run_id,
            parallelism=of.parallelism,
            query_id=of.query_id or None,
            started_at=func.now(),
            # It stands for runs of the lost metastore, which are fenced.
            ended_at=func.now(),
        )
    )


def _add_checkpoints(connection: Connection, job: RebuiltJob) -> None:
    for one in job.manifests:
        add_confirmed(connection, one.manifest)
        connection.execute(
            insert(Pin).values(
                pin_id=uuid4(),
                job_id=one.manifest.job_id,
                checkpoint_id=one.manifest.checkpoint_id,
                kind=PinKind.PIN,
                name=PIN_NAME,
            )
        )


def _add_files(connection: Connection, job: RebuiltJob, run: RunRef) -> None:
    files = {file.file_id: file for one in job.manifests for file in one.manifest.files}
    segments = list(job.segments())
    for one in job.manifests:
        file_id = str(uuid4())
        files[file_id] = ManifestFile(file_id, one.path, Scope.SHARED)
        # Manifests are files like any other, or the cleanup could never delete them.
        handle = manifest_handle(one.manifest, file_id, one.path, one.data)
        segments.append((file_id, 0, handle))
    for file in files.values():
        add_copy(connection, run, file.file_id, file.path, file.scope)
        seal_files(connection, [WrittenFile(file.file_id, job.sizes[file.path])])
    place_segments(connection, run.job_id, segments)
