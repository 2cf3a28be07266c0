"""Looks at something again and again, in a thread of its own, while a stream runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Sampler(ABC):
    """Calls `sample` every so often while it is entered, and once more when it is left."""

    interval_s = 0.2

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @abstractmethod
    def sample(self) -> None:
        """Looks once."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self.interval_s):
            self.sample()
        self.sample()
