"""The files of a job that are worth rewriting, read a page at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from cairn.catalog.catalog import Catalog
from cairn.catalog.jobs import find_job
from metastore.enums import HeldBy, Scope

PAGE_FILES = 500
"""Most files of one transaction."""


class Place(NamedTuple):
    """A file's place in the order of those with the most dead bytes."""

    dead_bytes: int
    file_id: UUID


FIRST = Place(2**63 - 1, UUID(int=2**128 - 1))
"""Before all files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedJob:
    """A job to compact. `is_running` tells whether a run of it is alive and continues."""

    job_id: str
    name: str
    parallelism: int | None
    is_running: bool
    is_dropped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WastefulFile:
    """What rewriting a sealed file costs and frees.

    `freed_bytes` are free once its `movable_bytes` are elsewhere and the checkpoints that there are
    now have been subsumed; 0 where something holds it. `changelog_bytes` are those that checkpoints
    to come need: they are folded, and never moved.
    """

    file_id: UUID
    path: str
    scope: Scope
    size_bytes: int
    live_bytes: int
    movable_segments: int
    movable_bytes: int
    changelog_bytes: int
    held_by: HeldBy | None
    freed_bytes: int

    @property
    def amplification(self) -> float:
        """Its size over its live bytes."""
        return self.size_bytes / self.live_bytes

    @property
    def directory(self) -> str:
        """The directory that it is in."""
        return self.path.rpartition("/")[0]


_JOB = text("""
    SELECT
        r.parallelism,
        coalesce(NOT cairn.is_over(r.ended_at, r.seen_at), FALSE) AS is_running
    FROM cairn.jobs AS j
    LEFT JOIN cairn.runs AS r ON r.job_id = j.job_id AND r.epoch = j.current_epoch
    WHERE j.job_id = :job_id
""")


def read_compacted_job(connection: Connection, name: str) -> CompactedJob:
    """Returns the job of a name.

    Raises:
        BadInputError: there is none; the message lists those there are.
    """
    job = find_job(connection, name)
    run = connection.execute(_JOB, {"job_id": job.job_id}).one()
    return CompactedJob(
        job_id=job.job_id,
        name=job.name,
        parallelism=run.parallelism,
        is_running=run.is_running,
        is_dropped=job.dropped_at is not None,
    )


_WASTEFUL = text("""
    SELECT file_id, dead_bytes
    FROM cairn.wasteful_files(:job_id, :least_ratio, :dead_bytes, :file_id, :most)
""")
_REWRITABLE = text("SELECT * FROM cairn.rewritable_files(:job_id, CAST(:files AS uuid[]))")


def wasteful_files(catalog: Catalog, job_id: str, least_ratio: float) -> Iterator[WastefulFile]:
    """Yields the files above a space amplification, those with the most dead bytes first.

    A page is two short transactions; what changes in between is decided again before a swap.
    """
    after = FIRST
    while True:
        found = catalog.run(
            "looking for files to rewrite",
            partial(wasteful_page, job_id=job_id, least_ratio=least_ratio, after=after),
        )
        yield from _rewritable(catalog, job_id, [one.file_id for one in found])
        if len(found) < PAGE_FILES:
            return
        after = found[-1]


def wasteful_page(
    connection: Connection, job_id: str, least_ratio: float, after: Place
) -> list[Place]:
    """Returns up to `PAGE_FILES` files above a space amplification, after another one."""
    rows = connection.execute(
        _WASTEFUL,
        {
            "job_id": job_id,
            "least_ratio": least_ratio,
            "dead_bytes": after.dead_bytes,
            "file_id": after.file_id,
            "most": PAGE_FILES,
        },
    )
    return [Place(row.dead_bytes, row.file_id) for row in rows]


def rewritable_files(
    connection: Connection, job_id: str, files: Sequence[UUID]
) -> list[WastefulFile]:
    """Returns what rewriting each of some files costs and frees, those that free most first."""
    rows = connection.execute(_REWRITABLE, {"job_id": job_id, "files": list(files)})
    return [
        WastefulFile(
            **{
                **row,
                "scope": Scope(row["scope"]),
                "held_by": HeldBy(row["held_by"]) if row["held_by"] else None,
            }
        )
        for row in rows.mappings()
    ]


_OF_PARALLELISM = text("""
    SELECT f.file_id, f.path
    FROM cairn.directories AS d
    JOIN cairn.physical_files AS f
        ON f.job_id = d.job_id
        AND f.path > d.path || '/'
        AND f.path < d.path || '0'
    WHERE d.job_id = :job_id
      AND d.parallelism = :parallelism
      AND d.status <> 'DELETED'
      AND f.status = 'SEALED'
      AND f.live_segments > 0
      AND f.path > :after
    ORDER BY f.path
    LIMIT :most
""")


def files_of_parallelism(catalog: Catalog, job_id: str, parallelism: int) -> Iterator[WastefulFile]:
    """Yields the files with live segments in the directories of the subtasks of a parallelism."""
    after = ""
    while True:

        def page(connection: Connection, after: str = after) -> list[Any]:
            values = {"job_id": job_id, "parallelism": parallelism, "most": PAGE_FILES}
            return list(connection.execute(_OF_PARALLELISM, values | {"after": after}))

        found = catalog.run("looking for files to empty", page)
        yield from _rewritable(catalog, job_id, [row.file_id for row in found])
        if len(found) < PAGE_FILES:
            return
        after = found[-1].path


def _rewritable(catalog: Catalog, job_id: str, files: list[UUID]) -> list[WastefulFile]:
    return catalog.run(
        "looking what holds files", partial(rewritable_files, job_id=job_id, files=files)
    )
