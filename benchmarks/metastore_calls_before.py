"""The catalog's calls as commit dbf3454 has them, for the load on the metastore.

Its modules are imported by name: types are checked against the catalog of today, which has others.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from uuid import uuid4

from sqlalchemy import Connection

from benchmarks.metastore_fill_before import fill
from benchmarks.metastore_shape import (
    MAX_PARALLELISM,
    QUERY_ID,
    SEGMENT_BYTES,
    Batch,
    History,
    JobRef,
)

_batch_ref = import_module("cairn.batch_ref")
_catalog = import_module("cairn.catalog.catalog")
_acks = import_module("cairn.catalog.job.acks")
_begin = import_module("cairn.catalog.job.begin")
_files = import_module("cairn.catalog.job.files")
_materializations = import_module("cairn.catalog.job.materializations")
_runs = import_module("cairn.catalog.job.runs")
_upload_stats = import_module("cairn.catalog.job.upload_stats")
_migrate = import_module("cairn.catalog.migrate")
_handles = import_module("cairn.handles")
_keygroups = import_module("cairn.keygroups")
_layout = import_module("cairn.layout")
_cleanup = import_module("cairn.maintenance.cleanup")
_enums = import_module("metastore.enums")


class CatalogCalls:
    """The calls on one metastore; what `benchmarks.metastore_shape.Calls` says."""

    def __init__(self, url: str) -> None:
        self._catalog = _catalog.Catalog(url)
        self._claimed: set[str] = set()

    def close(self) -> None:
        """Closes the connections."""
        _catalog.dispose_engines()

    def migrate(self) -> None:
        """Makes the schema."""
        _migrate.migrate(self._catalog)

    def register(self, name: str, parallelism: int, storage: str) -> JobRef:
        """Registers a run."""
        registration = _runs.Registration(
            run_id=uuid4(),
            job=name,
            storage=storage,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            num_retained=3,
            key_schema={"fields": []},
            states=[],
        )
        run = self._catalog.run("registering", lambda c: _runs.register_run(c, registration))
        return JobRef(name, run.job_id, run.epoch, parallelism, str(registration.run_id))

    def begin(self, batch: Batch, subtasks: Sequence[int]) -> int:
        """Begins a batch for all subtasks: this version knows no others."""
        ref = _ref(batch)
        start = self._catalog.run("beginning", lambda c: _begin.begin_batch(c, ref))
        return int(start.checkpoint_id)

    def commit_group(
        self, batch: Batch, checkpoint_id: int, executor: int, subtasks: Sequence[int]
    ) -> dict[str, float]:
        """Commits one file with a changelog segment for each subtask."""
        ref, job = _ref(batch), batch.job
        tm_id, file_id = f"{job.epoch}-{executor:012x}", str(uuid4())
        path = _layout.task_manager_file(job.job_id, tm_id, file_id)
        directory = _handles.DirectoryHandle(
            path=_layout.task_manager_directory(job.job_id, tm_id),
            scope=_enums.Scope.TASK_MANAGER,
            tm_id=tm_id,
        )
        file = _files.IntendedFile(
            file_id=file_id, path=path, scope=_enums.Scope.TASK_MANAGER, batch_id=batch.batch_id
        )
        claims = [directory] if self._is_new(directory.path) else []
        intent_s = self._timed(lambda c: _files.intend_files(c, ref, [file], claims))
        acks = [
            _acks.Ack(
                subtask=subtask,
                attempt_id=str(uuid4()),
                task_attempt=1,
                input_rows=10,
                restore_ms=5,
                segments=(
                    _segment(
                        job,
                        subtask,
                        _enums.SegmentKind.CHANGELOG,
                        checkpoint_id,
                        path,
                        place * SEGMENT_BYTES,
                    ),
                ),
            )
            for place, subtask in enumerate(subtasks)
        ]
        written = _files.WrittenFile(file_id, len(acks) * SEGMENT_BYTES)
        ack_s = self._timed(
            lambda c: _acks.acknowledge(
                c,
                ref,
                checkpoint_id=checkpoint_id,
                tm_id=tm_id,
                acks=acks,
                files={path: written},
                uploads=[_stats(len(acks))],
            )
        )
        return {"intent": intent_s, "ack": ack_s}

    def install_base(self, batch: Batch, subtask: int, as_of: int) -> dict[str, float]:
        """Installs a base of all of a subtask's key groups at a confirmed checkpoint."""
        ref, job, file_id = _ref(batch), batch.job, str(uuid4())
        path = _layout.shared_file(job.job_id, subtask, job.parallelism, file_id)
        directory = _handles.DirectoryHandle(
            path=_layout.shared_directory(job.job_id, subtask, job.parallelism),
            scope=_enums.Scope.SHARED,
            subtask=subtask,
            parallelism=job.parallelism,
        )
        file = _files.IntendedFile(file_id=file_id, path=path, scope=_enums.Scope.SHARED)
        claims = [directory] if self._is_new(directory.path) else []
        intent_s = self._timed(lambda c: _files.intend_files(c, ref, [file], claims))
        base = (
            _files.WrittenFile(file_id, SEGMENT_BYTES),
            _segment(job, subtask, _enums.SegmentKind.KEYED_FULL, as_of, path),
        )
        install_s = self._timed(lambda c: _materializations.install(c, ref, subtask, [base]))
        return {"intent": intent_s, "install": install_s}

    def plan_cleanup(self, job: JobRef) -> None:
        """Makes a cleanup's plan and counts what waits for its deletion."""
        _cleanup.cleanup_job(self._catalog, job.name, dry_run=True)

    def cleanup(self, job: JobRef) -> None:
        """Cleans up."""
        _cleanup.cleanup_job(self._catalog, job.name)

    def fill(self, job: JobRef, history: History) -> None:
        """Gives a job that has begun no batch the rows of a history, by SQL."""
        with self._catalog.begin() as connection:
            fill(connection, job, history)

    def _timed(self, work: Callable[[Connection], object]) -> float:
        began_s = time.monotonic()
        self._catalog.run("the benchmark", work)
        return time.monotonic() - began_s

    def _is_new(self, path: str) -> bool:
        """Tells whether a directory is used for the first time, and is to be claimed."""
        is_new = path not in self._claimed
        self._claimed.add(path)
        return is_new


def _ref(batch: Batch) -> object:
    return _batch_ref.BatchRef(
        job=batch.job.name,
        job_id=batch.job.job_id,
        epoch=batch.job.epoch,
        query_id=QUERY_ID,
        batch_id=batch.batch_id,
    )


def _segment(
    job: JobRef, subtask: int, kind: object, checkpoint_id: int, path: str, offset: int = 0
) -> object:
    spec = _handles.SegmentSpec(
        kind=kind,
        size_bytes=SEGMENT_BYTES,
        sha256=secrets.token_hex(32),
        key_groups=_keygroups.range_of(subtask, job.parallelism, MAX_PARALLELISM),
        entries=3,
        checkpoint_id=checkpoint_id,
    )
    return spec.at(path, offset)


def _stats(segments: int) -> object:
    return _upload_stats.UploadStats(
        commit_id=str(uuid4()),
        segments=segments,
        size_bytes=segments * SEGMENT_BYTES,
        requests=1,
        retries=0,
        hedges=0,
        hedge_wins=0,
        failed_attempts=0,
        winning_attempt=1,
        failed_uploads=0,
        queue_size=0,
        wait_ms=0,
        upload_ms=5,
        longest_request_ms=5,
    )
