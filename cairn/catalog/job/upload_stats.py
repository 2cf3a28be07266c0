"""What uploads were like: columns of a group commit, written with the acks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStats:
    """The statistics of the requests of one upload, which wrote one physical file."""

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

    @classmethod
    def of_one_request(cls, *, segments: int, size_bytes: int, took_ms: int) -> UploadStats:
        """Returns the statistics of an upload whose first request was its last."""
        return cls(
            segments=segments,
            size_bytes=size_bytes,
            requests=1,
            retries=0,
            hedges=0,
            hedge_wins=0,
            failed_attempts=0,
            winning_attempt=1,
            failed_uploads=0,
            queue_size=0,
            wait_ms=0,
            upload_ms=took_ms,
            longest_request_ms=took_ms,
        )


_GREATEST = {"winning_attempt", "queue_size", "longest_request_ms"}
MOST = 2**31 - 1
"""Of the columns' type."""
_RENAMED = {"segments": "uploaded_segments", "size_bytes": "uploaded_bytes"}


UPLOAD_COLUMNS = (
    "uploaded_files",
    "pool_wait_ms",
    *(_RENAMED.get(one.name, one.name) for one in fields(UploadStats)),
)
"""Of a group commit: what `upload_facts` returns."""


def upload_facts(uploads: Sequence[UploadStats], pool_wait_ms: int) -> dict[str, int]:
    """Returns the columns of a group commit that say what its uploads were like; none: nothing.

    Of several uploads, counts, bytes and times are summed; of what cannot be, the greatest counts.
    `pool_wait_ms` is the whole group's: how long it waited for a file of a pool that blocks.
    """
    if not uploads:
        return {}
    facts = {"uploaded_files": len(uploads), "pool_wait_ms": pool_wait_ms}
    for one in fields(UploadStats):
        values = [getattr(upload, one.name) for upload in uploads]
        together = max if one.name in _GREATEST else sum
        facts[_RENAMED.get(one.name, one.name)] = together(values)
    # A statistic that is too large for its column must not refuse the acks.
    return {name: min(fact, MOST) for name, fact in facts.items()}
