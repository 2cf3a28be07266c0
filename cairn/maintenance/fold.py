"""Folding shares of a job: reads them, writes their bases, and puts these in their place.

Killed anywhere, it has changed nothing but what it has installed, and the cleanup deletes the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.catalog.job.files import WrittenFile
from cairn.catalog.maintenance.folds import (
    Folded,
    FoldInput,
    Share,
    install_folded,
    read_inputs,
)
from cairn.catalog.maintenance.leased_files import LeaseRef
from cairn.handles import SegmentHandle
from cairn.maintenance.leased_files import write_leased_file
from cairn.segments.base_writer import FoldedBase
from cairn.segments.fold import fold
from cairn.storage import ObjectStore

FILE_BYTES = 64 << 20
"""A file ends with the base that reaches this. Bases wait in memory for it and for the last one."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldReport:
    """What a fold has done.

    Of the shares, `folded` have new bases, `unchanged` have none on top of theirs, and `refused`
    were materialized by somebody else meanwhile, so that what was written for them is not used.
    """

    folded: int = 0
    unchanged: int = 0
    refused: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    entries: int = 0

    def __add__(self, other: FoldReport) -> FoldReport:
        mine, theirs = asdict(self), asdict(other)
        return FoldReport(**{name: mine[name] + theirs[name] for name in mine})


def fold_shares(
    catalog: Catalog,
    job: JobFacts,
    store: ObjectStore,
    lease: LeaseRef,
    shares: Sequence[Share],
    *,
    scratch: Path | None = None,
) -> FoldReport:
    """Folds some shares as of the newest checkpoint that Spark has committed.

    Costs one transaction to read, one a file, and one to install. Uses memory for `FILE_BYTES`,
    twice, and what `cairn.segments.fold` needs, however large the shares are.

    Raises:
        FencedError: the process does not hold the lease any more; nothing is installed.
        CorruptSegmentError: a segment is not what was recorded, or holds no state.
        RefusedError, BadInputError: see `write_leased_file`; or a share cannot be folded.
        StoreFailedError: the metastore or the storage failed; a retry begins anew.
    """
    inputs = catalog.run(
        f"reading what to fold of job {job.name}", lambda c: read_inputs(c, job.job_id, shares)
    )
    changed = [one for one in inputs if one.changes]
    report = fold_inputs(catalog, job, store, lease, changed, scratch=scratch)
    return replace(report, unchanged=len(shares) - len(changed))


def fold_inputs(
    catalog: Catalog,
    job: JobFacts,
    store: ObjectStore,
    lease: LeaseRef,
    inputs: Sequence[FoldInput],
    *,
    scratch: Path | None = None,
) -> FoldReport:
    """Folds what was read of some shares, and installs all that still stands.

    Raises:
        see `fold_shares`.
    """
    with _Files(catalog, job, store, lease) as files:
        for one in inputs:
            for base in _bases(job, store, one, scratch):
                files.add(one, base)
        files.finish()
    folds = [Folded(one, files.bases_of(one)) for one in inputs]
    refused: list[FoldInput] = []
    if folds:
        refused = catalog.run(
            f"installing folds of job {job.name}", lambda c: install_folded(c, lease, folds)
        )
    for one in refused:
        facts = {"job": job.name, "subtask": one.share.subtask, "plan": str(lease.run_id)}
        _log.warning("fold refused: the share was materialized meanwhile", extra=facts)
    return FoldReport(
        folded=len(folds) - len(refused),
        refused=len(refused),
        read_bytes=sum(one.size_bytes for one in inputs),
        written_bytes=files.written_bytes,
        entries=sum(handle.entries for fold_ in folds for _, handle in fold_.bases),
    )


def _bases(
    job: JobFacts, store: ObjectStore, one: FoldInput, scratch: Path | None
) -> Iterator[FoldedBase]:
    return fold(
        store,
        one.handles,
        one.share.key_groups,
        job=job.name,
        subtask=one.share.subtask,
        as_of_checkpoint=one.as_of_checkpoint,
        scratch=scratch,
    )


class _Files:
    """Bases on their way into files, several to a file.

    A thread writes a file while the bases of the next are made, so two are in memory at most.
    """

    def __init__(
        self, catalog: Catalog, job: JobFacts, store: ObjectStore, lease: LeaseRef
    ) -> None:
        self.written_bytes = 0
        self._to = (catalog, job, store, lease)
        self._waiting: list[tuple[Share, FoldedBase]] = []
        self._written: dict[Share, list[tuple[WrittenFile, SegmentHandle]]] = {}
        self._thread = ThreadPoolExecutor(1)
        self._under_way: Future[None] | None = None

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        # Nothing writes any more when the lease is given up.
        self._thread.shutdown()

    def add(self, of: FoldInput, base: FoldedBase) -> None:
        self._waiting.append((of.share, base))
        if sum(base.spec.size_bytes for _, base in self._waiting) >= FILE_BYTES:
            self._begin()

    def finish(self) -> None:
        """Writes what waits, and returns once all files are written."""
        self._begin()
        self._end()

    def _begin(self) -> None:
        self._end()
        if self._waiting:
            self._under_way = self._thread.submit(self._write, self._waiting)
            self._waiting = []

    def _end(self) -> None:
        """Waits for the file that is being written, and raises what went wrong with it."""
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def _write(self, bases: list[tuple[Share, FoldedBase]]) -> None:
        """Writes bases as one file, and lets go of their bytes."""
        pieces = [piece for _, base in bases for piece in base.pieces]
        written = write_leased_file(*self._to, pieces)
        offset = 0
        for share, base in bases:
            handle = base.spec.at(written.path, offset)
            self._written.setdefault(share, []).append((written.file, handle))
            offset += base.spec.size_bytes
        self.written_bytes += offset
        bases.clear()

    def bases_of(self, one: FoldInput) -> Sequence[tuple[WrittenFile, SegmentHandle]]:
        return self._written[one.share]
