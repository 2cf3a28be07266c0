"""A job with real objects in which one base in four is live."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from uuid import uuid4

from benchmarks.metastore_calls import CatalogCalls
from benchmarks.metastore_shape import MAX_PARALLELISM, QUERY_ID, Batch, JobRef
from cairn.batch_ref import BatchRef
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.files import IntendedFile, WrittenFile, intend_files
from cairn.catalog.job.materializations import install
from cairn.handles import DirectoryHandle, SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange, range_of
from cairn.layout import shared_directory, shared_file
from cairn.storage import ObjectStore, open_store
from metastore.enums import Scope, SegmentKind

BASES_A_FILE = 4
SUBTASKS = 2
_SMALL_BYTES = 1000
_RETAINED = 4

Base = tuple[WrittenFile, SegmentHandle]


def wasteful_job(url: str, storage: str, name: str, files: int, segment_bytes: int) -> JobRef:
    """Returns a running job with so many files, three of whose four bases are dead."""
    calls = CatalogCalls(url)
    job = calls.register(name, SUBTASKS, storage)
    writer = _Writer(calls, Catalog(url), open_store(storage), job)
    writer.go_on(2)
    for subtask in range(SUBTASKS):
        quarters = [_quarters(one) for one in _ranges(subtask, files // SUBTASKS)]
        writer.install(subtask, quarters, segment_bytes)
    writer.go_on(1)
    for subtask in range(SUBTASKS):
        replaced = [
            KeyGroupRange(quarters[0].start, quarters[-1].start)
            for quarters in map(_quarters, _ranges(subtask, files // SUBTASKS))
        ]
        writer.install(subtask, [replaced], _SMALL_BYTES)
    writer.go_on(_RETAINED)
    calls.cleanup(job)
    return job


def _ranges(subtask: int, files: int) -> list[KeyGroupRange]:
    """Returns the key groups of each of a subtask's files."""
    whole = range_of(subtask, SUBTASKS, MAX_PARALLELISM)
    return _split(whole, files)


def _quarters(whole: KeyGroupRange) -> list[KeyGroupRange]:
    return _split(whole, BASES_A_FILE)


def _split(whole: KeyGroupRange, parts: int) -> list[KeyGroupRange]:
    places = [whole.start + len(whole) * part // parts for part in range(parts + 1)]
    return [KeyGroupRange(*pair) for pair in pairwise(places)]


class _Writer:
    """Runs batches of one executor, whose changelog has no objects, and installs bases beside."""

    def __init__(
        self, calls: CatalogCalls, catalog: Catalog, store: ObjectStore, job: JobRef
    ) -> None:
        self._calls, self._catalog, self._store, self._job = calls, catalog, store, job
        self._batches = self._confirmed = 0
        self._checkpoint = self._begin()

    def go_on(self, batches: int) -> None:
        """Acknowledges the batch under way and more, and begins another."""
        for _ in range(batches):
            batch = Batch(self._job, self._batches)
            self._calls.commit_group(batch, self._checkpoint, 0, range(SUBTASKS))
            self._batches += 1
            self._confirmed, self._checkpoint = self._checkpoint, self._begin()

    def _begin(self) -> int:
        return self._calls.begin(Batch(self._job, self._batches), range(SUBTASKS))

    def install(
        self, subtask: int, files: Sequence[Sequence[KeyGroupRange]], size_bytes: int
    ) -> None:
        """Writes files with a base of each of their key groups, and installs them together."""
        bases = [base for ranges in files for base in self._write(subtask, ranges, size_bytes)]
        self._catalog.run("installing bases", lambda c: install(c, self._batch(), subtask, bases))

    def _write(self, subtask: int, ranges: Sequence[KeyGroupRange], size_bytes: int) -> list[Base]:
        file_id, parallelism = str(uuid4()), self._job.parallelism
        path = shared_file(self._job.job_id, subtask, parallelism, file_id)
        directory = DirectoryHandle(
            path=shared_directory(self._job.job_id, subtask, parallelism),
            scope=Scope.SHARED,
            subtask=subtask,
            parallelism=parallelism,
        )
        intended = IntendedFile(file_id=file_id, path=path, scope=Scope.SHARED)
        self._catalog.run_each(
            "recording a write",
            partial(intend_files, batch=self._batch(), files=[intended], claims=[directory]),
        )
        data = [os.urandom(size_bytes) for _ in ranges]
        self._store.put(path, data)
        specs = [
            SegmentSpec.of(
                one,
                kind=SegmentKind.KEYED_FULL,
                key_groups=key_groups,
                entries=3,
                checkpoint_id=self._confirmed,
            )
            for one, key_groups in zip(data, ranges, strict=True)
        ]
        file = WrittenFile(file_id, size_bytes * len(ranges))
        return [(file, spec.at(path, place * size_bytes)) for place, spec in enumerate(specs)]

    def _batch(self) -> BatchRef:
        job = self._job
        return BatchRef(
            job=job.name,
            job_id=job.job_id,
            epoch=job.epoch,
            run_id=job.run_id,
            query_id=QUERY_ID,
            batch_id=self._batches,
        )
