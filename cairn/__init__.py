"""Cairn: merged checkpoints for the state of PySpark Structured Streaming.

`cairn.Job` is the library's front; the errors are in `cairn.errors`, and `cairn.cause_of` finds one
in an exception of Spark's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cairn.errors import cause_of

if TYPE_CHECKING:
    from cairn.runtime.driver.job import Job

__all__ = ["Job", "cause_of"]


def __getattr__(name: str) -> object:
    # Spark is imported when it is needed: the CLI and the DAGs do without it.
    if name == "Job":
        from cairn.runtime.driver.job import Job  # noqa: PLC0415

        return Job
    raise AttributeError(f"module 'cairn' has no attribute {name!r}")
