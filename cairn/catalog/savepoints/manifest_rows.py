"""Manifests in the metastore: the content of one, the intent to write it, and its seal.

A manifest is a physical file with one segment of kind MANIFEST, whose interval is its checkpoint
alone. So it is kept exactly as long as the checkpoint, and the cleanup deletes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import BigInteger, Connection, Row, and_, cast, func, select, text
from sqlalchemy.dialects.postgresql import insert

from cairn.batch_ref import RunRef
from cairn.catalog.job.fencing import lock_job, require_epoch
from cairn.catalog.job.files import WrittenFile, seal_files
from cairn.catalog.job.segments import place_segments, replay_order, stored_at
from cairn.errors import RefusedError
from cairn.handles import SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange
from cairn.layout import manifest_file
from cairn.manifest import Manifest, ManifestFile, ManifestSegment, ManifestVariable
from metastore.enums import CheckpointStatus, FileStatus, Scope, SegmentKind, SegmentStatus
from metastore.models import Checkpoint, Job, PhysicalFile, PlacedSegment, Run, StateVariable


@dataclass(frozen=True, slots=True, kw_only=True)
class IntendedManifest:
    """A manifest to write at `path`; `is_written`: it is there already, so nothing is to do."""

    manifest: Manifest
    file_id: str
    path: str
    is_written: bool


@dataclass(frozen=True, slots=True)
class NewestManifest:
    """A manifest that is written: when, in ms since 1970, and how many segments it names."""

    checkpoint_id: int
    made_ms: int
    segments: int


def describe_checkpoint(connection: Connection, job_id: str, checkpoint_id: int) -> Manifest:
    """Returns the manifest of a confirmed checkpoint, in a transaction that reads one instant.

    It takes no lock, because it may take seconds: `intend_manifest` makes sure that it still holds.

    Raises:
        RefusedError: the checkpoint is not CONFIRMED.
    """
    found = connection.execute(
        select(
            Checkpoint.__table__,
            Run.run_id,
            Job.name,
            Job.max_parallelism,
            Job.key_schema,
            Job.time_mode,
        )
        .join(Run, and_(Run.job_id == Checkpoint.job_id, Run.epoch == Checkpoint.epoch))
        .join(Job, Job.job_id == Checkpoint.job_id)
        .where(Checkpoint.job_id == job_id, Checkpoint.checkpoint_id == checkpoint_id)
    ).one_or_none()
    if found is None:
        job = connection.execute(select(Job.name).where(Job.job_id == job_id)).scalar_one()
        raise _not_confirmed(job, checkpoint_id, None)
    if found.status != CheckpointStatus.CONFIRMED:
        raise _not_confirmed(found.name, checkpoint_id, found.status)
    files, segments = _segments(connection, job_id, found.max_parallelism, checkpoint_id)
    return Manifest(
        job=found.name,
        job_id=job_id,
        max_parallelism=found.max_parallelism,
        key_schema=found.key_schema,
        time_mode=found.time_mode,
        checkpoint_id=checkpoint_id,
        parent_checkpoint=found.parent_checkpoint,
        query_id=found.query_id,
        batch_id=found.batch_id,
        epoch=found.epoch,
        run_id=str(found.run_id),
        parallelism=found.parallelism,
        processing_ms=found.processing_ms,
        watermark_ms=found.watermark_ms,
        max_event_ms=_seen(connection, job_id, checkpoint_id),
        variables=_variables(connection, found),
        files=files,
        segments=segments,
    )


def intend_manifest(
    connection: Connection, manifest: Manifest, *, run: RunRef | None = None
) -> IntendedManifest:
    """Records that a confirmed checkpoint's manifest is about to be written.

    The checkpoint is CONFIRMED, still: so none of its segments has died, and the manifest is as it
    was read. One that was begun before is taken up again, and one that is written is left alone.

    Raises:
        FencedError: `run` is given, and a newer one has begun a batch.
        RefusedError: the checkpoint is not CONFIRMED or not the one that was read, the job was
            dropped, or a write of the manifest was given up.
    """
    job_id, checkpoint_id = manifest.job_id, manifest.checkpoint_id
    if run is None:
        job = lock_job(connection, job_id, exclusive=False)
    else:
        job = require_epoch(connection, run)
    _require_as_read(connection, job.name, manifest)
    # One path per checkpoint, without a file id: it has to be found with no metastore left.
    path = manifest_file(job_id, checkpoint_id)
    # By the newest epoch: an operator's savepoint is not of the run that made the checkpoint, and
    # must not be taken for a fenced run's file.
    file = _intend(connection, job_id, path, epoch=max(job.current_epoch, manifest.epoch))
    if file.status not in (FileStatus.WRITING, FileStatus.SEALED):
        raise RefusedError(
            "a write of this checkpoint's manifest was given up when a newer run began, and its "
            "path is never used again. Take a newer checkpoint",
            job=job.name,
            checkpoint=checkpoint_id,
            file=path,
        )
    return IntendedManifest(
        manifest=manifest,
        file_id=str(file.file_id),
        path=path,
        is_written=file.status == FileStatus.SEALED,
    )


def _require_as_read(connection: Connection, job: str, manifest: Manifest) -> None:
    """Refuses unless the checkpoint is CONFIRMED still, and is the one that was read."""
    checkpoint_id = manifest.checkpoint_id
    found = connection.execute(
        select(Checkpoint.status, Checkpoint.processing_ms, Run.run_id, Job.dropped_at)
        .join(Run, and_(Run.job_id == Checkpoint.job_id, Run.epoch == Checkpoint.epoch))
        .join(Job, Job.job_id == Checkpoint.job_id)
        .where(Checkpoint.job_id == manifest.job_id, Checkpoint.checkpoint_id == checkpoint_id)
    ).one_or_none()
    if found is not None and found.dropped_at is not None:
        raise RefusedError(
            "the job was dropped meanwhile, and its state is being deleted: it gets no manifest",
            job=job,
            checkpoint=checkpoint_id,
        )
    if found is None or found.status != CheckpointStatus.CONFIRMED:
        raise _not_confirmed(job, checkpoint_id, found.status if found else None)
    # A metastore that has lost its newest rows gives ids and epochs again, to other checkpoints.
    if (str(found.run_id), found.processing_ms) != (manifest.run_id, manifest.processing_ms):
        raise RefusedError(
            "the checkpoint of this id is another one than was read: the metastore was restored "
            "from a backup, or has failed over, meanwhile. Try again",
            job=job,
            checkpoint=checkpoint_id,
        )


def _not_confirmed(job: str, checkpoint_id: int, status: CheckpointStatus | None) -> RefusedError:
    return RefusedError(
        f"only a CONFIRMED checkpoint has a manifest; this one "
        f"{f'is {status.value}' if status else 'does not exist'}",
        job=job,
        checkpoint=checkpoint_id,
    )


def _intend(connection: Connection, job_id: str, path: str, *, epoch: int) -> Row[UUID, FileStatus]:
    """Records the write intent of a manifest's file, or finds it; returns its id and status."""
    connection.execute(
        insert(PhysicalFile)
        .values(
            file_id=uuid4(),
            job_id=job_id,
            epoch=epoch,
            path=path,
            scope=Scope.SHARED,
        )
        .on_conflict_do_update(
            index_elements=[PhysicalFile.job_id, PhysicalFile.path],
            set_={"created_at": func.now()},  # from now on the object may appear, again
            where=PhysicalFile.status == FileStatus.WRITING,
        )
    )
    return connection.execute(
        select(PhysicalFile.file_id, PhysicalFile.status).where(
            PhysicalFile.job_id == job_id, PhysicalFile.path == path
        )
    ).one()


def seal_manifest(connection: Connection, intended: IntendedManifest, data: bytes) -> None:
    """Records that `data` is durable as the manifest. May run again with the same effect.

    Raises:
        FencedError: a newer run has begun and the cleanup has given up the write.
    """
    manifest, file_id = intended.manifest, intended.file_id
    # No fence: the manifest of a confirmed checkpoint is the same whoever writes it.
    lock_job(connection, manifest.job_id, exclusive=False)
    seal_files(connection, [WrittenFile(file_id, len(data))])
    handle = manifest_handle(manifest, file_id, intended.path, data)
    place_segments(connection, manifest.job_id, [(file_id, 0, handle)])


def manifest_handle(manifest: Manifest, file_id: str, path: str, data: bytes) -> SegmentHandle:
    """Returns the handle of a manifest: the only segment of its file, and so of the same id."""
    spec = SegmentSpec.of(
        data,
        kind=SegmentKind.MANIFEST,
        key_groups=KeyGroupRange(0, manifest.max_parallelism),
        entries=len(manifest.segments),
        checkpoint_id=manifest.checkpoint_id,
    )
    return spec.at(path, segment_id=file_id)


def newest_manifest(connection: Connection, job_id: str) -> NewestManifest | None:
    """Returns the manifest of the newest checkpoint that has one; None if there is none."""
    made_ms = cast(func.extract("epoch", PlacedSegment.created_at) * 1000, BigInteger)
    row = connection.execute(
        select(PlacedSegment.first_checkpoint, made_ms, PlacedSegment.entries)
        .where(
            PlacedSegment.job_id == job_id,
            PlacedSegment.status == SegmentStatus.LIVE,
            PlacedSegment.kind == SegmentKind.MANIFEST,
        )
        .order_by(PlacedSegment.first_checkpoint.desc())
        .limit(1)
    ).one_or_none()
    return None if row is None else NewestManifest(*row)


def _seen(connection: Connection, job_id: str, checkpoint_id: int) -> tuple[int | None, ...]:
    """Returns the latest event times by input as of the end of the checkpoint."""
    seen = text("""
        SELECT cairn.seen_after(c) FROM cairn.checkpoints AS c
        WHERE c.job_id = :job_id AND c.checkpoint_id = :checkpoint_id
    """)
    facts = {"job_id": job_id, "checkpoint_id": checkpoint_id}
    return tuple(connection.execute(seen, facts).scalar_one())


def _variables(
    connection: Connection, checkpoint: Row[*tuple[Any, ...]]
) -> tuple[ManifestVariable, ...]:
    rows = connection.execute(
        select(StateVariable.__table__)
        .where(StateVariable.job_id == checkpoint.job_id)
        # In one order: a manifest's bytes are the same whenever they are made.
        .order_by(StateVariable.state_id)
    )
    return tuple(
        ManifestVariable(
            state_id=row.state_id,
            name=row.name,
            kind=row.kind.value,
            value_layout=row.value_schema,
            user_key_schema=row.user_key_schema,
            has_ttl=row.has_ttl,
            # A run drops its variables in the transaction that opens its first checkpoint.
            is_dropped=row.dropped_at is not None and row.dropped_at <= checkpoint.began_at,
        )
        for row in rows
    )


def _segments(
    connection: Connection, job_id: str, max_parallelism: int, checkpoint_id: int
) -> tuple[tuple[ManifestFile, ...], tuple[ManifestSegment, ...]]:
    everything = KeyGroupRange(0, max_parallelism)
    stored = sorted(
        stored_at(connection, job_id, checkpoint_id, everything),
        key=lambda one: (replay_order(one.handle), one.handle.segment_id),
    )
    files = {(one.handle.path, one.file_id, one.scope) for one in stored}
    return tuple(
        ManifestFile(file_id, path, scope) for path, file_id, scope in sorted(files)
    ), tuple(
        ManifestSegment(
            segment_id=one.handle.segment_id,
            file_id=one.file_id,
            kind=one.handle.kind,
            subtask=one.subtask,
            key_groups=one.handle.key_groups,
            offset=one.handle.offset,
            size_bytes=one.handle.size_bytes,
            sha256=one.handle.sha256,
            entries=one.handle.entries,
            first_checkpoint=one.handle.first_checkpoint,
            as_of_checkpoint=one.handle.as_of_checkpoint,
            sequence_number=one.handle.sequence_number,
            index=one.handle.index,
        )
        for one in stored
    )
