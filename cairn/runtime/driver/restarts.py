"""When a query that has failed is started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cairn.errors import BadInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """A delay that grows with each failure, as Flink's restart strategy exponential-delay.

    Args:
        first_delay_ms: before the first restart.
        max_delay_ms: the delay grows no further.
        multiplier: of the delay from one restart to the next.
        reset_after_ms: a query that ran so long without failing is at the first delay again.
        max_restarts: so many in a row; the next failure is raised. None: there is no limit.

    Raises:
        BadInputError: a value is out of its range.
    """

    first_delay_ms: int = 1_000
    max_delay_ms: int = 60_000
    multiplier: float = 2.0
    reset_after_ms: int = 3_600_000
    max_restarts: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.first_delay_ms <= self.max_delay_ms:
            raise BadInputError(
                f"first_delay_ms is {self.first_delay_ms!r}; allowed: 1 to max_delay_ms, which is "
                f"{self.max_delay_ms!r}"
            )
        if self.multiplier < 1 or self.reset_after_ms <= 0 or (self.max_restarts or 0) < 0:
            raise BadInputError(
                "multiplier is at least 1, reset_after_ms above 0 and max_restarts at least 0; "
                f"found {self}"
            )

    def delay_ms(self, restarts: int) -> int | None:
        """Returns the delay after so many restarts in a row; None: it is not started again."""
        if self.max_restarts is not None and restarts >= self.max_restarts:
            return None
        # By steps, as a power of many restarts is no number any more.
        delay_ms = float(self.first_delay_ms)
        for _ in range(restarts):
            if delay_ms >= self.max_delay_ms:
                break
            delay_ms *= self.multiplier
        return int(min(delay_ms, self.max_delay_ms))


@dataclass(slots=True, kw_only=True)
class Restarts:
    """How often a query was started again in a row."""

    policy: RestartPolicy
    clock_s: Callable[[], float] = time.monotonic
    in_a_row: int = 0
    _started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_s = self.clock_s()

    def started(self) -> None:
        """Notes that the query starts now, after a start that may have run well for long."""
        if self._ran_well():
            self.in_a_row = 0
        self._started_s = self.clock_s()

    def forget(self) -> None:
        """Forgets what has failed before: the query starts as another one."""
        self.in_a_row = 0

    def next_delay_ms(self) -> int | None:
        """Returns when to start the query that has just failed; None: never."""
        if self._ran_well():
            self.in_a_row = 0
        delay_ms = self.policy.delay_ms(self.in_a_row)
        self.in_a_row += 1
        return delay_ms

    def _ran_well(self) -> bool:
        return (self.clock_s() - self._started_s) * 1000 >= self.policy.reset_after_ms
