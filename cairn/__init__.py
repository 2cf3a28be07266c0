"""Cairn: merged checkpoints for the state of PySpark Structured Streaming.

`cairn.Job` is the library's front, and `cairn.run` keeps a query of it running; the errors are in
`cairn.errors`, and `cairn.cause_of` finds one in an exception of Spark's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from cairn.errors import cause_of

if TYPE_CHECKING:
    from cairn.runtime.driver.job import Job
    from cairn.runtime.driver.restarts import RestartPolicy
    from cairn.runtime.driver.supervise import run

__all__ = ["Job", "RestartPolicy", "cause_of", "run"]

_MODULES = {
    "Job": "cairn.runtime.driver.job",
    "RestartPolicy": "cairn.runtime.driver.restarts",
    "run": "cairn.runtime.driver.supervise",
}


def __getattr__(name: str) -> object:
    # Spark is imported when it is needed: the CLI and the DAGs do without it.
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'cairn' has no attribute {name!r}")
