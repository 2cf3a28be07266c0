"""Where the tests keep their files: in memory, where there is room for them.

Tests write and fsync thousands of small files, and their servers gigabytes. A disk takes up to
10 ms for each fsync, in which a core is idle. What fsync is for, a crash of the machine, no test
shows; those of the order of the calls look at the calls.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 6 << 30
"""Twice what a run of all tests with two workers was seen to keep at once."""


def keep_files_in_memory() -> None:
    """Makes memory the place of temporary files, of this process and those that it starts.

    Not where `TMPDIR` names another place, and not where programs cannot be run from memory, as in
    many containers, or where there is little of it.
    """
    if "TMPDIR" not in os.environ and _has_room():
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # what was found before


def _has_room() -> bool:
    if not MEMORY.is_dir() or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return False
    free = min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available)
    return free >= LEAST_FREE_BYTES and os.access(MEMORY, os.W_OK)
