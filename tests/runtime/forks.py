"""Processes forked from one that has everything imported.

There is one such server in a test session, so what it imports is here, for all that use it.
"""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "cairn.storage.s3",
        "pandas",  # pyarrow imports it for the first array that is made
        "pytest",  # every child imports the main module again
        "tests.forked",
        "tests.maintenance.killed",
        "tests.runtime.killed_at_a_step",
        "tests.runtime.one_task",
        "tests.runtime.commit.one_upload",
        "tests.storage.killed_compaction",
        "tests.storage.killed_sweep",
    ]
)
