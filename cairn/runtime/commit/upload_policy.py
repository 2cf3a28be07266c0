"""When an upload sends another request: hedges, timeouts and retries. Pure, no clock, no I/O.

A hedge is a second request for the same bytes while the first one runs, sent when that one takes
longer than most have lately (FLIP-158, "Request hedging"; Dean and Barroso, "The tail at scale").
The delay is a quantile of the observed latencies, and a budget bounds how many there are, so that a
store that is slow for everybody does not get twice the load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cairn.settings import Settings

HEDGE_SHARE = 0.05
"""Hedges per upload, at most, counted from an executor's first upload on."""
HEDGE_BURST = 10
"""Hedges in a row, at most, after a time without any."""
HEDGE_QUANTILE = 0.95
LEAST_HEDGE_MS = 50
"""A hedge costs a transaction and a request; below this there is nothing to win."""

WINDOW = 512
"""Latencies that are kept of each size class."""
LEAST_OBSERVED = 20
"""Latencies of a size class from which on its quantiles are used."""

TIMEOUT_QUANTILE = 0.99
TIMEOUT_FACTOR = 4
TIMEOUT_RANGE_MS = (1000.0, 30_000.0)
FIRST_TIMEOUT_MS = 10_000.0
"""The adaptive timeout while too little was observed."""

_SMALLEST_CLASS_BITS = 16


class Kind(StrEnum):
    """Why a request is sent."""

    FIRST = "first"
    HEDGE = "hedge"
    """The first one takes longer than most; it is not cancelled."""
    RETRY = "retry"
    """The one before failed, or has timed out and is not cancelled."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """One request of an upload that was sent; times are of one monotonic clock."""

    kind: Kind
    sent_ms: float
    failed_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What holds for one upload.

    `hedge_after_ms` is infinite where there may be no hedge. `max_attempts` leaves hedges out, so
    that a hedge never takes the place of a retry.
    """

    hedge_after_ms: float
    timeout_ms: float
    max_attempts: int
    next_attempt_delay_ms: float


def next_step(
    limits: Limits, requests: Sequence[SentRequest], now_ms: float
) -> Kind | float | None:
    """Returns the kind of the request to send now, or the time until which to wait.

    The time is infinite if only an answer can change anything. None: every request has failed,
    and no other may be sent. No request has succeeded so far.
    """
    if not requests:
        return Kind.FIRST
    running = [request for request in requests if request.failed_ms is None]
    when = math.inf
    kind = Kind.RETRY
    if sum(request.kind is not Kind.HEDGE for request in requests) < limits.max_attempts:
        failed = [request.failed_ms for request in requests if request.failed_ms is not None]
        if running:
            when = running[-1].sent_ms + limits.timeout_ms
        if requests[-1].failed_ms is not None:
            when = min(when, max(failed) + limits.next_attempt_delay_ms)
    # One hedge per upload, and none beside a retry: that is a second request already.
    if len(requests) == 1 and running:
        hedge_at = requests[0].sent_ms + limits.hedge_after_ms
        # Of two that are due, the hedge: it does not count as an attempt.
        if hedge_at <= when:
            when, kind = hedge_at, Kind.HEDGE
    if when == math.inf and not running:
        return None
    return kind if when <= now_ms else when


@dataclass(slots=True)
class History:
    """The latest uploads of an executor, and the remaining budget for hedges.

    `latencies_ms` has, by size class, one latency per upload, the newest last: of the first
    request, or how long it had run when another one won. `failed_uploads` are those that failed
    whole and that no row of the metastore counts yet.
    """

    latencies_ms: dict[int, list[int]] = field(default_factory=dict)
    hedge_budget: float = 0.0
    failed_uploads: int = 0

    def limits(self, settings: Settings, size_bytes: int) -> Limits:
        """Returns the limits of an upload of so many bytes."""
        if settings.upload_retry_policy == "none":
            return Limits(
                hedge_after_ms=math.inf,
                timeout_ms=math.inf,
                max_attempts=1,
                next_attempt_delay_ms=0.0,
            )
        if settings.upload_timeout_ms is None:
            hedge_after_ms, timeout_ms = self._adaptive(size_bytes)
        else:
            hedge_after_ms, timeout_ms = math.inf, float(settings.upload_timeout_ms)
        return Limits(
            hedge_after_ms=hedge_after_ms,
            timeout_ms=timeout_ms,
            max_attempts=settings.upload_max_attempts,
            next_attempt_delay_ms=float(settings.upload_next_attempt_delay_ms),
        )

    def take_hedge(self) -> bool:
        """Takes a hedge from the budget; tells whether there was one."""
        if self.hedge_budget < 1:
            return False
        self.hedge_budget -= 1
        return True

    def observe(self, size_bytes: int, latency_ms: float) -> None:
        """Adds an upload that is over."""
        latencies = self.latencies_ms.setdefault(size_class(size_bytes), [])
        latencies.append(round(latency_ms))
        # Of late: a store that was slow an hour ago says nothing.
        del latencies[:-WINDOW]
        self.hedge_budget = min(self.hedge_budget + HEDGE_SHARE, HEDGE_BURST)

    def count_failure(self) -> None:
        """Adds an upload that failed whole."""
        self.failed_uploads += 1

    def take_failures(self) -> int:
        """Returns how many failed that no row counts, and counts them as taken."""
        taken, self.failed_uploads = self.failed_uploads, 0
        return taken

    def _adaptive(self, size_bytes: int) -> tuple[float, float]:
        latencies = self.latencies_ms.get(size_class(size_bytes), [])
        # No hedge yet: a quantile of few would send one for any slow start.
        if len(latencies) < LEAST_OBSERVED:
            return math.inf, FIRST_TIMEOUT_MS
        ordered = sorted(latencies)
        hedge_after_ms = max(_quantile(ordered, HEDGE_QUANTILE), LEAST_HEDGE_MS)
        least, most = TIMEOUT_RANGE_MS
        timeout_ms = TIMEOUT_FACTOR * _quantile(ordered, TIMEOUT_QUANTILE)
        return hedge_after_ms, min(max(timeout_ms, least), most)


def size_class(size_bytes: int) -> int:
    """Returns which uploads take about as long: up to 64 KiB, 256 KiB, 1 MiB and so on."""
    return max(0, (size_bytes - 1).bit_length() - _SMALLEST_CLASS_BITS + 1) // 2


def _quantile(ordered: Sequence[int], share: float) -> float:
    return float(ordered[min(int(len(ordered) * share), len(ordered) - 1)])
