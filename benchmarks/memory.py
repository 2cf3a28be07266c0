"""How much memory Spark's Python workers use while a stream runs."""

from __future__ import annotations

import psutil

from benchmarks.results import WorkerMemory
from benchmarks.sampler import Sampler

_DAEMON = "pyspark.daemon"
_LMDB_FILE = "/data.mdb"


class WorkerSampler(Sampler):
    """Samples the Python workers below this process while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._uss_bytes = 0
        self._without_lmdb_bytes = 0

    def peak(self) -> WorkerMemory:
        """Returns the highest samples so far."""
        return WorkerMemory(self._uss_bytes, self._without_lmdb_bytes)

    def sample(self) -> None:
        """Looks at every worker that there is."""
        for process in psutil.Process().children(recursive=True):
            try:
                self._sample(process)
            except psutil.NoSuchProcess:
                continue

    def _sample(self, process: psutil.Process) -> None:
        parent = process.parent()
        # The daemon's children are the workers; the daemon's own parent is Java.
        if parent is None or not (_is_daemon(process) and _is_daemon(parent)):
            return
        private = [
            (mapping.path, mapping.private_clean + mapping.private_dirty)
            for mapping in process.memory_maps(grouped=True)
        ]
        uss_bytes = sum(size_bytes for _, size_bytes in private)
        lmdb_bytes = sum(size_bytes for path, size_bytes in private if path.endswith(_LMDB_FILE))
        self._uss_bytes = max(self._uss_bytes, uss_bytes)
        self._without_lmdb_bytes = max(self._without_lmdb_bytes, uss_bytes - lmdb_bytes)


def _is_daemon(process: psutil.Process) -> bool:
    return _DAEMON in process.cmdline()
