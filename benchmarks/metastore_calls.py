"""The catalog's calls as this version has them, for the load on the metastore."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import uuid4

from sqlalchemy import Connection

from benchmarks.metastore_fill import fill
from benchmarks.metastore_shape import (
    MAX_PARALLELISM,
    QUERY_ID,
    SEGMENT_BYTES,
    Batch,
    History,
    JobRef,
)
from cairn.batch_ref import BatchRef
from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.catalog.job.acks import acknowledge
from cairn.catalog.job.begin import begin_batch
from cairn.catalog.job.files import IntendedFile, WrittenFile, intend_files
from cairn.catalog.job.group_commits import Ack
from cairn.catalog.job.materializations import install
from cairn.catalog.job.runs import Registration, register_run
from cairn.catalog.job.upload_stats import UploadStats
from cairn.catalog.migrate import migrate
from cairn.handles import DirectoryHandle, SegmentHandle, SegmentSpec
from cairn.keygroups import range_of
from cairn.layout import shared_directory, shared_file, task_manager_directory, task_manager_file
from cairn.maintenance.cleanup import cleanup_job
from cairn.ownership.take import own_root
from cairn.storage import open_store
from metastore.enums import Scope, SegmentKind

T = TypeVar("T")


class CatalogCalls:
    """The calls on one metastore; what `benchmarks.metastore_shape.Calls` says."""

    def __init__(self, url: str) -> None:
        self._catalog = Catalog(url)
        self._claimed: set[str] = set()

    def close(self) -> None:
        """Closes the connections."""
        dispose_engines()

    def migrate(self) -> None:
        """Makes the schema."""
        migrate(self._catalog)

    def register(self, name: str, parallelism: int, storage: str) -> JobRef:
        """Registers a run."""
        registration = Registration(
            run_id=uuid4(),
            job=name,
            storage=storage,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            num_retained=3,
            file_retention_ms=0,
            key_schema={"fields": []},
            states=[],
        )
        run = self._catalog.run("registering", lambda c: register_run(c, registration))
        os.environ["CAIRN_STORAGES"] = storage  # where the cleanup may delete
        own_root(self._catalog, open_store(storage), run.job_id)
        return JobRef(name, run.job_id, run.epoch, parallelism, str(registration.run_id))

    def begin(self, batch: Batch, subtasks: Sequence[int]) -> int:
        """Begins a batch for the subtasks of one executor."""
        ref = _ref(batch)
        start = self._catalog.run_each(
            "beginning", lambda c: begin_batch(c, ref, subtasks=list(subtasks))
        )
        return start.checkpoint_id

    def commit_group(
        self, batch: Batch, checkpoint_id: int, executor: int, subtasks: Sequence[int]
    ) -> dict[str, float]:
        """Commits one file with a changelog segment for each subtask."""
        ref, job = _ref(batch), batch.job
        tm_id, file_id = f"{job.epoch}-{executor:012x}", str(uuid4())
        path = task_manager_file(job.job_id, tm_id, file_id)
        directory = DirectoryHandle(
            path=task_manager_directory(job.job_id, tm_id), scope=Scope.TASK_MANAGER, tm_id=tm_id
        )
        file = IntendedFile(
            file_id=file_id, path=path, scope=Scope.TASK_MANAGER, batch_id=batch.batch_id
        )
        claims = [directory] if self._is_new(directory.path) else []
        intent_s = self._timed(lambda c: intend_files(c, ref, [file], claims))
        acks = [
            Ack(
                subtask=subtask,
                attempt_id=str(uuid4()),
                task_attempt=1,
                input_rows=10,
                restore_ms=5,
                segments=(
                    _segment(job, subtask, SegmentKind.CHANGELOG, checkpoint_id).at(
                        path, place * SEGMENT_BYTES
                    ),
                ),
            )
            for place, subtask in enumerate(subtasks)
        ]
        written = WrittenFile(file_id, len(acks) * SEGMENT_BYTES)
        stats = _stats(len(acks))
        ack_s = self._timed(
            lambda c: acknowledge(
                c,
                ref,
                checkpoint_id=checkpoint_id,
                tm_id=tm_id,
                acks=acks,
                files={path: written},
                uploads=[stats],
            )
        )
        return {"intent": intent_s, "ack": ack_s}

    def install_base(self, batch: Batch, subtask: int, as_of: int) -> dict[str, float]:
        """Installs a base of all of a subtask's key groups at a confirmed checkpoint."""
        ref, job, file_id = _ref(batch), batch.job, str(uuid4())
        path = shared_file(job.job_id, subtask, job.parallelism, file_id)
        directory = DirectoryHandle(
            path=shared_directory(job.job_id, subtask, job.parallelism),
            scope=Scope.SHARED,
            subtask=subtask,
            parallelism=job.parallelism,
        )
        file = IntendedFile(file_id=file_id, path=path, scope=Scope.SHARED)
        claims = [directory] if self._is_new(directory.path) else []
        intent_s = self._timed(lambda c: intend_files(c, ref, [file], claims))
        base: tuple[WrittenFile, SegmentHandle] = (
            WrittenFile(file_id, SEGMENT_BYTES),
            _segment(job, subtask, SegmentKind.KEYED_FULL, as_of).at(path),
        )
        install_s = self._timed(lambda c: install(c, ref, subtask, [base]))
        return {"intent": intent_s, "install": install_s}

    def plan_cleanup(self, job: JobRef) -> None:
        """Makes a cleanup's plan and counts what waits for its deletion."""
        cleanup_job(self._catalog, job.name, dry_run=True)

    def cleanup(self, job: JobRef) -> None:
        """Cleans up."""
        cleanup_job(self._catalog, job.name)

    def fill(self, job: JobRef, history: History) -> None:
        """Gives a job that has begun no batch the rows of a history, by SQL."""
        with self._catalog.begin() as connection:
            fill(connection, job, history)

    def _timed(self, work: Callable[[Connection], T]) -> float:
        began_s = time.monotonic()
        self._catalog.run_each("the benchmark", work)
        return time.monotonic() - began_s

    def _is_new(self, path: str) -> bool:
        """Tells whether a directory is used for the first time, and is to be claimed."""
        is_new = path not in self._claimed
        self._claimed.add(path)
        return is_new


def _ref(batch: Batch) -> BatchRef:
    return BatchRef(
        job=batch.job.name,
        job_id=batch.job.job_id,
        epoch=batch.job.epoch,
        run_id=batch.job.run_id,
        query_id=QUERY_ID,
        batch_id=batch.batch_id,
    )


def _segment(job: JobRef, subtask: int, kind: SegmentKind, checkpoint_id: int) -> SegmentSpec:
    return SegmentSpec(
        kind=kind,
        size_bytes=SEGMENT_BYTES,
        sha256=secrets.token_hex(32),
        key_groups=range_of(subtask, job.parallelism, MAX_PARALLELISM),
        entries=3,
        checkpoint_id=checkpoint_id,
    )


def _stats(segments: int) -> UploadStats:
    return UploadStats.of_one_request(
        segments=segments, size_bytes=segments * SEGMENT_BYTES, took_ms=5
    )
