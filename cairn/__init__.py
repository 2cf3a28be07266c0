"""Cairn: merged checkpoints for the state of PySpark Structured Streaming.

`cairn.Job` is the library's front; the errors are in `cairn.errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cairn.runtime.driver.job import Job

__all__ = ["Job"]


def __getattr__(name: str) -> object:
    # Spark is imported when it is needed: the CLI and the DAGs do without it.
    if name == "Job":
        from cairn.runtime.driver.job import Job  # noqa: PLC0415

        return Job
    raise AttributeError(f"module 'cairn' has no attribute {name!r}")
