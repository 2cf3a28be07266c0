"""What uploads were like: one row per group commit, written with the acks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from uuid import UUID

from sqlalchemy import CTE
from sqlalchemy.dialects.postgresql import insert

from metastore.models import UploadStat


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStats:
    """The statistics of the requests of one upload, which wrote one physical file.

    `commit_id` is random, so that a transaction that runs twice records the upload once.
    """

    commit_id: str
    segments: int
    size_bytes: int
    requests: int
    """Writes that were sent: the first, retries and hedges."""
    retries: int
    hedges: int
    hedge_wins: int
    failed_attempts: int
    winning_attempt: int
    """The number of the request that counts, from 1."""
    failed_uploads: int
    """Uploads of the executor that failed whole since its row before."""
    queue_size: int
    """Uploads of the executor that were under way when this one asked to begin."""
    wait_ms: int
    """How long it waited for the limits in flight."""
    upload_ms: int
    """From the first request to the winner's answer."""
    longest_request_ms: int
    """Of a request that lost: until the winner's answer."""


_GREATEST = {"winning_attempt", "queue_size", "longest_request_ms"}


def record_uploads(
    job_id: str,
    checkpoint_id: int,
    tm_id: str,
    uploads: Sequence[UploadStats],
    pool_wait_ms: int,
) -> CTE:
    """Returns the insert of a group commit's row, to be made part of another statement.

    Of several uploads, counts, bytes and times are summed; of what cannot be, the greatest counts.
    `pool_wait_ms` is the whole group's: how long it waited for a file of a pool that blocks.
    """
    columns = {name: [getattr(one, name) for one in uploads] for name in asdict(uploads[0])}
    commit_id = UUID(columns.pop("commit_id")[0])
    facts = {name: (max if name in _GREATEST else sum)(all_) for name, all_ in columns.items()}
    return (
        insert(UploadStat)
        .values(
            commit_id=commit_id,
            job_id=job_id,
            checkpoint_id=checkpoint_id,
            tm_id=tm_id,
            files=len(uploads),
            pool_wait_ms=pool_wait_ms,
            **facts,
        )
        # Random ids make the insert repeatable: the transaction may run again.
        .on_conflict_do_nothing(index_elements=[UploadStat.commit_id])
        .cte("recorded")
    )
