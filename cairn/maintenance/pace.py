"""How fast objects are deleted: not faster than the store, and whoever pays for it, can take."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """Lets through up to `per_s` objects a second, in groups."""

    def __init__(
        self,
        per_s: int,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_s = per_s
        self._now_s = now_s
        self._sleep = sleep
        self._free_at_s = now_s()

    def wait(self, objects: int) -> None:
        """Waits until another group may go, which takes its share of the time after it."""
        now_s = self._now_s()
        if self._free_at_s > now_s:
            self._sleep(self._free_at_s - now_s)
        self._free_at_s = max(now_s, self._free_at_s) + objects / self._per_s
