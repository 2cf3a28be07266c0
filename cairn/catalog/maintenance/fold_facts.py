"""What is on top of the bases of a job, by subtask: what folds are planned from."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select, text

from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.catalog.job.segments import read_one_instant
from cairn.catalog.jobs import find_job
from cairn.catalog.maintenance.folds import Share
from cairn.keygroups import range_of
from metastore.enums import MaterializedBy, SegmentKind
from metastore.models import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFacts:
    """What a restore of one subtask reads, in bytes. `age_ms` is since its newest base.

    Without one, it is since the job was made. Changelog of another parallelism counts for every
    subtask that it may be of.
    """

    share: Share
    base_bytes: int
    increment_bytes: int
    changelog_bytes: int
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldFacts:
    """A job and the subtasks of its newest confirmed checkpoint; none before the first."""

    job: JobFacts
    materialized_by: MaterializedBy
    interval_ms: int
    checkpoint_id: int | None
    shares: tuple[ShareFacts, ...]


_CHECKPOINT = text("""
    SELECT checkpoint_id, parallelism FROM cairn.checkpoints
    WHERE job_id = :job_id AND status = 'CONFIRMED'
    ORDER BY checkpoint_id DESC LIMIT 1
""")
_PLACED = text("""
    SELECT
        lower(key_groups) AS first_group, upper(key_groups) AS end_group, kind, size_bytes,
        extract(epoch FROM now() - created_at) * 1000 AS age_ms
    FROM cairn.placed_segments
    WHERE job_id = :job_id
      AND status = 'LIVE'
      AND released_checkpoint IS NULL
      AND kind IN ('keyed_full', 'keyed_increment')
""")
_CHANGELOG = text("SELECT subtask, size_bytes FROM cairn.uncovered_changelog(:job_id, NULL)")
_AGE = text("""
    SELECT extract(epoch FROM now() - created_at) * 1000 FROM cairn.jobs WHERE job_id = :job_id
""")


def jobs_left_to_maintenance(connection: Connection) -> list[str]:
    """Returns the names of the jobs whose newest run leaves their materialization to it, in order.

    None that was dropped.
    """
    return list(
        connection.scalars(
            select(Job.name)
            .where(
                Job.materialized_by == MaterializedBy.MAINTENANCE,
                Job.dropped_at.is_(None),
            )
            .order_by(Job.name)
        )
    )


def read_fold_facts(connection: Connection, job_name: str) -> FoldFacts:
    """Returns what there is to fold of a job, as of one instant.

    Raises:
        BadInputError: there is no such job.
    """
    read_one_instant(connection)
    job = find_job(connection, job_name)
    values = {"job_id": job.job_id}
    newest = connection.execute(_CHECKPOINT, values).one_or_none()
    shares: tuple[ShareFacts, ...] = ()
    if newest is not None:
        shares = _shares(connection, job.job_id, newest.parallelism, job.max_parallelism)
    return FoldFacts(
        job=JobFacts(
            job_id=job.job_id,
            name=job.name,
            storage=job.storage,
            num_retained=job.num_retained,
            file_retention_ms=job.file_retention_ms,
            current_epoch=job.current_epoch,
            is_dropped=job.dropped_at is not None,
        ),
        materialized_by=MaterializedBy(job.materialized_by),
        interval_ms=job.materialize_interval_ms,
        checkpoint_id=None if newest is None else newest.checkpoint_id,
        shares=shares,
    )


def _shares(
    connection: Connection, job_id: str, parallelism: int, max_parallelism: int
) -> tuple[ShareFacts, ...]:
    values = {"job_id": job_id}
    base_bytes = [0] * parallelism
    increment_bytes = [0] * parallelism
    job_age_ms = int(connection.scalars(_AGE, values).one())
    age_ms = [job_age_ms] * parallelism
    for row in connection.execute(_PLACED, values):
        is_base = row.kind == SegmentKind.KEYED_FULL
        first = row.first_group * parallelism // max_parallelism
        last = (row.end_group - 1) * parallelism // max_parallelism
        for subtask in range(first, last + 1):
            (base_bytes if is_base else increment_bytes)[subtask] += row.size_bytes
            age_ms[subtask] = min(age_ms[subtask], int(row.age_ms))
    changelog = {row.subtask: row.size_bytes for row in connection.execute(_CHANGELOG, values)}
    of_another = sum(bytes_ for subtask, bytes_ in changelog.items() if subtask >= parallelism)
    return tuple(
        ShareFacts(
            share=Share(subtask, range_of(subtask, parallelism, max_parallelism)),
            base_bytes=base_bytes[subtask],
            increment_bytes=increment_bytes[subtask],
            changelog_bytes=changelog.get(subtask, 0) + of_another,
            age_ms=age_ms[subtask],
        )
        for subtask in range(parallelism)
    )
