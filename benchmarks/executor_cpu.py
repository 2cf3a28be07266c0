"""How much CPU the Python processes of Spark's executors use: workers, and what materializes."""

from __future__ import annotations

from contextlib import suppress

import psutil

from benchmarks.sampler import Sampler

_DAEMON = "pyspark.daemon"
_MATERIALIZING = "cairn.runtime.materialization.process"


class ExecutorCpu(Sampler):
    """Samples the processes below this one while it is entered.

    Attributes:
        workers_s, materializing_s: what they have used so far, those that have ended too.
    """

    def __init__(self) -> None:
        super().__init__()
        # By the process: one that its parent has left is below this one no more.
        self._used_s: dict[str, dict[psutil.Process, float]] = {_DAEMON: {}, _MATERIALIZING: {}}

    @property
    def workers_s(self) -> float:
        """Of the workers that run Spark's tasks."""
        return sum(self._used_s[_DAEMON].values())

    @property
    def materializing_s(self) -> float:
        """Of the processes that materialize."""
        return sum(self._used_s[_MATERIALIZING].values())

    def sample(self) -> None:
        """Looks at every process that there is."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                kind = next((one for one in self._used_s if one in process.cmdline()), None)
                if kind is not None:
                    self._used_s[kind].setdefault(process, 0.0)
        for used_s in self._used_s.values():
            for process in used_s:
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    used_s[process] = times.user + times.system
