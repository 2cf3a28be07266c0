"""Uploads on a simulated store, by a simulated clock, with the policy that real ones go by.

Latencies follow the quantiles that FLIP-158 gives for S3 ("DFS write latency"): p50 459, p90 740,
p95 833, p99 1039, p999 3202 ms. Between them the quantile function is a straight line, so that it
meets all five. What it is beyond p99 they do not say, apart from p999. There are two readings:

    FLIP_158     a mode of its own: some requests are stuck, the others go on as they do up to p99.
                 It is what "requests that take much longer than others" says, and what 500
                 requests show, as many as were measured: their p999 is the slowest one alone.
    HEAVY_TAIL   one tail: a power law from p99 through p999.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cairn.runtime.commit.upload_policy import History, Kind, SentRequest, next_step
from cairn.settings import Settings

SIZE_BYTES = 5 << 20
BODY = [(0.0, 150.0), (0.5, 459.0), (0.9, 740.0), (0.95, 833.0), (0.99, 1039.0)]

Latency = Callable[[float], float]
"""The quantile function of how long requests take, in ms."""


def latency_of(points: Sequence[tuple[float, float]]) -> Latency:
    """Returns the quantile function with straight lines between points."""
    shares = [share for share, _ in points]

    def at(share: float) -> float:
        place = min(bisect(shares, share), len(points) - 1)
        (low, from_ms), (high, to_ms) = points[place - 1], points[place]
        return from_ms + (to_ms - from_ms) * (share - low) / (high - low)

    return at


# The line from p95 to p99 goes on to where 15 in 10,000 are left; those are stuck for 2.8 to 4 s.
FLIP_158 = latency_of([*BODY, (0.9985, 1082.8), (0.9985, 2802.0), (0.999, 3202.0), (1.0, 4002.0)])
_BODY = latency_of(BODY)


def heavy_tail(share: float) -> float:
    """Returns a quantile of the second reading."""
    if share < 0.99:
        return _BODY(share)
    power = math.log(10) / math.log(3202 / 1039)
    return min(1039.0 * math.pow((1 - share) / 0.01, -1 / power), 60_000.0)


def slower(latency: Latency, times: float) -> Latency:
    """Returns latencies that are so many times longer."""
    return lambda share: latency(share) * times


def even_shares(seed: int) -> Iterator[float]:
    """Yields shares of which every 10,000 have all quantiles, so that few uploads show them."""
    shares = [(number + 0.5) / 10_000 for number in range(10_000)]
    order = random.Random(seed)
    while True:
        order.shuffle(shares)
        yield from shares


@dataclass
class Simulation:
    """Uploads of one executor, one after the other."""

    settings: Settings
    seed: int = 158
    history: History = field(default_factory=History)
    latencies_ms: list[float] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shares = even_shares(self.seed)
        self.now_ms = 0.0

    def upload(self, number: int, latency: Latency) -> None:
        """Makes so many uploads on a store of these latencies."""
        for _ in range(number):
            self._one(latency)

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[int(len(ordered) * share)]

    def share_of(self, kind: Kind) -> float:
        """Returns how many requests of a kind were sent per upload."""
        return self.kinds.count(kind) / len(self.latencies_ms)

    def _one(self, latency: Latency) -> None:
        began_ms = self.now_ms
        limits = self.history.limits(self.settings, SIZE_BYTES)
        requests: list[SentRequest] = []
        ends_ms: list[float] = []
        while True:
            step = next_step(limits, requests, self.now_ms)
            assert step is not None, "it gave up"
            if step is Kind.HEDGE and not self.history.take_hedge():
                limits = replace(limits, hedge_after_ms=math.inf)
            elif isinstance(step, Kind):
                requests.append(SentRequest(step, self.now_ms))
                ends_ms.append(self.now_ms + latency(next(self.shares)))
                self.kinds.append(step)
            else:
                self.now_ms = min(step, *ends_ms)
                if self.now_ms in ends_ms:
                    break
        self.latencies_ms.append(self.now_ms - began_ms)
        self.history.observe(SIZE_BYTES, self.now_ms - requests[0].sent_ms)
