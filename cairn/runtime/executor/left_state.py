"""Local state that nobody reads any more: of parallelisms that a job had, and of dropped jobs.

Executors remove it themselves, as nothing else reaches their disks: once in each run, when one of
its checkpoints is confirmed, so a run that fails at once has taken nothing from the one before.
All local state is in storage, too: what is removed too early is restored.
"""

from __future__ import annotations

import logging
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

from cairn.catalog.jobs import known_jobs
from cairn.errors import StoreFailedError
from cairn.locks import try_lock
from cairn.runtime.executor.local_mark import discard
from cairn.runtime.executor.private_files import disk_errors, write_private
from cairn.runtime.executor.run_context import RunContext

_ASKER = "metastore"
"""In the directory of a job: which metastore knows it, and by which login."""

_JOB_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}-[0-9a-f]{8}")
_log = logging.getLogger(__name__)


def remove_left_state(run: RunContext, job_directory: Path) -> bool:
    """Removes local state of a job's other parallelisms, and of jobs that were dropped.

    A job is taken for dropped only if this run's login to this metastore has put the name of both
    into the job's directory, and does not see the job any more. So what another application has
    on the same disk stays. Returns False if the metastore could not say: try again later.
    """
    _remove_other_parallelisms(run, job_directory)
    others = [
        other
        for other in job_directory.parent.iterdir()
        if _JOB_ID.fullmatch(other.name) and other != job_directory and _asker_of(other)
    ]
    if not others and _asker_of(job_directory):
        return True
    try:
        known = run.catalog.run(
            "looking whose local state is left",
            lambda c: known_jobs(c, [run.job_id, *(other.name for other in others)]),
        )
    except StoreFailedError as error:
        _log.warning("left local state stays for now: %s", error, extra={"job": run.job})
        return False
    if run.job_id in known.job_ids:
        with disk_errors("the local directory cannot be used", job_directory):
            write_private(job_directory / _ASKER, known.asker.encode())
    for other in others:
        if other.name not in known.job_ids and _asker_of(other) == known.asker:
            _remove_job(other)
    return True


def _remove_other_parallelisms(run: RunContext, job_directory: Path) -> None:
    for directory in job_directory.glob("subtask-*-*"):
        match = re.fullmatch(r"subtask-[0-9]+-([0-9]+)", directory.name)
        if match is None or int(match[1]) == run.parallelism:
            continue
        with ExitStack() as held:
            # The lock under which it is opened; who holds it now is using it.
            if try_lock(directory.with_suffix(".lock"), held) is None:
                continue
            with disk_errors("local state cannot be removed", directory):
                discard(directory)
        facts = {"job": run.job, "directory": str(directory)}
        _log.info("local state of another parallelism removed", extra=facts)


def _remove_job(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != _ASKER:
            entry.unlink(missing_ok=True)
    # Last: killed before, the next run finds the rest.
    (directory / _ASKER).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    _log.info("local state of a dropped job removed", extra={"directory": str(directory)})


def _asker_of(job_directory: Path) -> str | None:
    try:
        return (job_directory / _ASKER).read_text()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
