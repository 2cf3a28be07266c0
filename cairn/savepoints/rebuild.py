"""A working metastore from the manifests in a storage, after the loss of the one there was."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError

from cairn.catalog.catalog import Catalog, server_message
from cairn.catalog.savepoints.rebuilt_job import FoundManifest, RebuiltJob, insert_job, refuse_known
from cairn.errors import BadInputError, CorruptSegmentError, RefusedError
from cairn.layout import epoch_of, generation_of, split_manifest_path
from cairn.manifest import Manifest
from cairn.ownership.take import take_over
from cairn.savepoints.manifest_files import decode_at
from cairn.storage import ObjectStore, open_store

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Told how many manifests have been read, of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What was recovered of one job. The query continues with the batch after `batch_id`.

    `unknown_files` are objects of the job that no manifest names: those written after the newest
    manifest, and those that were to be deleted.
    """

    job: str
    job_id: str
    checkpoints: int
    newest_checkpoint: int
    query_id: str
    batch_id: int
    segments: int
    files: int
    live_bytes: int
    unknown_files: int
    unknown_bytes: int


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The recovered jobs, and a sentence for each manifest and each job that could not be used."""

    jobs: tuple[JobReport, ...]
    problems: tuple[str, ...]


def rebuild(
    catalog: Catalog,
    storage: str,
    *,
    takes_over: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RebuildReport:
    """Fills a metastore with the jobs whose manifests lie below a storage URL.

    Each in a transaction of its own, so that what is wrong with one is in nobody's way: a job that
    the metastore has, two of one name, and one whose manifests the metastore does not take are
    among the problems. Nothing in storage changes, and a root that has an owner keeps it: the
    jobs can be read here, and neither run nor be cleaned up. With `takes_over` this metastore owns
    the roots from then on. A dry run only reads.

    Raises:
        RefusedError: there are jobs with manifests, but none of them could be rebuilt.
        StoreFailedError: the metastore or the storage failed; jobs that were filled in before stay.
    """
    store = open_store(storage)
    sizes = _sizes(store)
    manifests, problems = _read_all(store, sizes, progress)
    for found_of_job in manifests.values():
        problems += _drop_given_up(found_of_job)
    jobs = [plan_job(store.url, manifests[job_id], sizes[job_id]) for job_id in sorted(manifests)]
    problems += [
        f"{job_id}: no manifest from which it could be rebuilt"
        for job_id in sorted(sizes.keys() - manifests.keys())
        # A file at the top, such as a probe that was left, is of no job.
        if any("/" in path for path in sizes[job_id])
    ]
    jobs, of_one_name = _with_names_of_their_own(jobs)
    problems += of_one_name
    rebuilt = []
    for job in jobs:
        try:
            catalog.run(f"rebuilding job {job.newest.job}", _inserting(job, dry_run=dry_run))
        except (RefusedError, IntegrityError, DataError, OperationalError) as error:
            problems.append(f"{job.newest.job_id}: {_reason(error)}")
        else:
            rebuilt.append(job)
    if manifests and not rebuilt:
        raise RefusedError(f"no job could be rebuilt: {'; '.join(problems)}")
    if takes_over and not dry_run:
        problems += _take_over(catalog, store, rebuilt)
    reports = [_report(job) for job in rebuilt]
    if not dry_run:
        _log_rebuilt(store.url, reports, problems)
    return RebuildReport(tuple(reports), tuple(problems))


def _sizes(store: ObjectStore) -> dict[str, dict[str, int]]:
    """Returns the sizes of all objects by job id and path, without owner objects."""
    sizes: dict[str, dict[str, int]] = defaultdict(dict)
    # One listing of everything: a request for each object would be thousands of them.
    for found in store.list(""):
        if generation_of(found.path) is None:
            sizes[found.path.split("/")[0]][found.path] = found.size_bytes
    return sizes


def _take_over(catalog: Catalog, store: ObjectStore, jobs: Iterable[RebuiltJob]) -> Iterator[str]:
    """Takes the roots over; yields in words where that failed, and what is lost since the read."""
    for job in jobs:
        try:
            take_over(catalog, store, job.newest.job_id)
        except RefusedError as error:
            yield f"{job.newest.job_id}: {error.message}"
    # Again: until a root was taken over, a cleanup of its last owner may have run.
    sizes = _sizes(store)
    for job in jobs:
        for one in job.manifests:
            missing = _missing(one.manifest, sizes[job.newest.job_id])
            if missing is not None:
                yield (
                    f"{one.path}: {missing} since it was read: the last owner has deleted it. "
                    "Its checkpoint cannot be restored"
                )


def plan_job(
    storage: str, manifests: Iterable[FoundManifest], sizes: Mapping[str, int]
) -> RebuiltJob:
    """Returns the job that manifests and the sizes of all its objects, by path, tell of."""
    in_order = sorted(manifests, key=lambda one: one.manifest.checkpoint_id)
    named = filter(None, map(split_manifest_path, sizes))
    return RebuiltJob(
        storage=storage,
        manifests=tuple(in_order),
        sizes=sizes,
        highest_epoch=max(
            *(one.manifest.epoch for one in in_order),
            *(epoch_of(path) or 0 for path in sizes),
        ),
        highest_checkpoint=max(checkpoint_id for _, _, checkpoint_id in named),
    )


def _read_all(
    store: ObjectStore, sizes: Mapping[str, Mapping[str, int]], progress: Progress | None
) -> tuple[dict[str, list[FoundManifest]], list[str]]:
    """Returns the usable manifests by job id, and the problems of the others."""
    paths = [
        path
        for job_id in sorted(sizes)
        for path in sizes[job_id]
        if (parts := split_manifest_path(path)) is not None and not parts[0]
    ]
    usable: dict[str, list[FoundManifest]] = defaultdict(list)
    problems = []
    for number, path in enumerate(paths, 1):
        try:
            data = store.get(path)
            manifest = decode_at(path, data)
        # Bad input: somebody has named the object so that no object of Cairn's can be called.
        except (CorruptSegmentError, RefusedError, BadInputError) as error:
            problems.append(f"{path}: {error.message}")
        else:
            missing = _missing(manifest, sizes[manifest.job_id])
            if missing is None:
                usable[manifest.job_id].append(FoundManifest(manifest, path, data))
            else:
                problems.append(f"{path}: {missing}")
        if progress is not None:
            progress(number, len(paths))
    return dict(usable), problems


def _drop_given_up(manifests: list[FoundManifest]) -> list[str]:
    """Takes out what a query was rolled back behind, by an earlier rebuild; returns it in words.

    Its batches were run again under higher ids, and must not look committed.
    """
    # By checkpoint id: a query that was rolled back runs its batches again under higher ones.
    newest = max((one.manifest for one in manifests), key=lambda one: one.checkpoint_id)
    given_up = [
        one
        for one in manifests
        if one.manifest is not newest
        and one.manifest.query_id == newest.query_id
        and one.manifest.batch_id >= newest.batch_id
    ]
    paths = {one.path for one in given_up}
    manifests[:] = [one for one in manifests if one.path not in paths]
    return [
        f"{one.path}: the query was rolled back behind its batch {one.manifest.batch_id}"
        for one in given_up
    ]


def _missing(manifest: Manifest, sizes: Mapping[str, int]) -> str | None:
    """Returns what a manifest names that is not in storage, in words."""
    for _, handle in manifest.handles():
        # By the listing: reading all bytes of all checkpoints would take as long as restoring them.
        if sizes.get(handle.path, 0) < handle.offset + handle.size_bytes:
            found = (
                "is missing" if handle.path not in sizes else f"has {sizes[handle.path]} bytes only"
            )
            return f"its file {handle.path} {found}"
    return None


def _with_names_of_their_own(jobs: Iterable[RebuiltJob]) -> tuple[list[RebuiltJob], list[str]]:
    """Returns the jobs whose name no other has, and in words those of one name."""
    by_name: dict[str, list[RebuiltJob]] = defaultdict(list)
    for job in jobs:
        by_name[job.newest.job].append(job)
    problems = [
        f"{' and '.join(job.newest.job_id for job in alike)} are of one job, {name!r}, and a "
        "metastore has one of a name. Move those that are not wanted out of the storage"
        for name, alike in by_name.items()
        if len(alike) > 1
    ]
    return [alike[0] for alike in by_name.values() if len(alike) == 1], problems


def _inserting(job: RebuiltJob, *, dry_run: bool) -> Callable[[Connection], None]:
    # Its id before the transaction, which may run twice: by it, it knows its first try.
    run_id = uuid.uuid4()

    def work(connection: Connection) -> None:
        if dry_run:
            refuse_known(connection, job.newest)
        else:
            insert_job(connection, job, run_id)

    return work


def _reason(error: RefusedError | DBAPIError) -> str:
    if isinstance(error, RefusedError):
        return error.message
    return f"the metastore does not take its manifests: {server_message(error)}"


def _log_rebuilt(storage: str, reports: Iterable[JobReport], problems: Sequence[str]) -> None:
    for report in reports:
        _log.info("job rebuilt from its manifests", extra=asdict(report) | {"storage": storage})
    if problems:
        facts = {"storage": storage, "problems": problems}
        _log.warning("rebuilt without part of the storage", extra=facts)


def _report(job: RebuiltJob) -> JobReport:
    newest = job.newest
    known = {one.path for one in job.manifests}
    known |= {file.path for one in job.manifests for file in one.manifest.files}
    unknown = [size for path, size in job.sizes.items() if path not in known]
    segments = job.segments()
    return JobReport(
        job=newest.job,
        job_id=newest.job_id,
        checkpoints=len(job.manifests),
        newest_checkpoint=newest.checkpoint_id,
        query_id=newest.query_id,
        batch_id=newest.batch_id,
        segments=len(segments),
        files=len(known),
        live_bytes=sum(handle.size_bytes for _, _, handle in segments),
        unknown_files=len(unknown),
        unknown_bytes=sum(unknown),
    )
