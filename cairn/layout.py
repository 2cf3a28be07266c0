"""Names of objects below a job's storage (FLIP-306 4.3, FLINK-10930)."""

from __future__ import annotations

import re
import secrets

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NUMBER = "[0-9]{1,19}"
_DIRECTORY = (
    f"(?:shared/subtask-{_NUMBER}-{_NUMBER}|taskmanager-owned/[A-Za-z0-9_-]{{1,100}}"
    f"|maintenance/{_UUID})"
)
_FILE = re.compile(f"[^/]+/(?:{_DIRECTORY}/{_UUID}|exclusive/{_NUMBER}-{_NUMBER}-{_UUID})[.]seg")
_MADE = re.compile(
    f"[^/]+/(?:{_DIRECTORY}|shared|taskmanager-owned|maintenance|exclusive|owner|chk-{_NUMBER})"
)
_UNFINISHED = re.compile(rf"{_MADE.pattern}/[.]tmp-{_UUID}")

_HIGHEST_ID = 2**62
"""Of checkpoints and runs: paths with others are of no job."""


def new_job_id(name: str) -> str:
    """Returns a fresh job id: the name made safe for a path, and 32 random bits."""
    # Names may hold anything, paths may not; the random bits tell alike slugs apart.
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "job"
    return f"{slug}-{secrets.token_hex(4)}"


def shared_directory(job_id: str, subtask: int, parallelism: int) -> str:
    """Returns a subtask's own directory, for files that may serve many checkpoints."""
    return f"{job_id}/shared/subtask-{subtask}-{parallelism}"


def task_manager_directory(job_id: str, tm_id: str) -> str:
    """Returns a task manager's own directory: files merged across its subtasks."""
    return f"{job_id}/taskmanager-owned/{tm_id}"


def shared_file(job_id: str, subtask: int, parallelism: int, file_id: str) -> str:
    """Returns the path of a physical file in a subtask's shared directory."""
    return f"{shared_directory(job_id, subtask, parallelism)}/{file_id}.seg"


def task_manager_file(job_id: str, tm_id: str, file_id: str) -> str:
    """Returns the path of a physical file in a task manager's own directory."""
    return f"{task_manager_directory(job_id, tm_id)}/{file_id}.seg"


def maintenance_directory(job_id: str, maintenance_run_id: str) -> str:
    """Returns the directory of one maintenance run: files that it writes for the job."""
    return f"{job_id}/maintenance/{maintenance_run_id}"


def maintenance_file(job_id: str, maintenance_run_id: str, file_id: str) -> str:
    """Returns the path of a physical file in a maintenance run's directory."""
    return f"{maintenance_directory(job_id, maintenance_run_id)}/{file_id}.seg"


def exclusive_file(job_id: str, checkpoint_id: int, subtask: int, file_id: str) -> str:
    """Returns the path of a physical file with one segment, which is of that checkpoint's state."""
    return f"{job_id}/exclusive/{checkpoint_id}-{subtask}-{file_id}.seg"


def manifest_file(job_id: str, checkpoint_id: int) -> str:
    """Returns the path of a checkpoint's manifest."""
    return f"{job_id}/chk-{checkpoint_id}/_metadata"


def split_manifest_path(path: str) -> tuple[str, str, int] | None:
    """Returns the prefix before the job's root, the job id and the checkpoint of a manifest.

    None for a path or URL of something else. The prefix is empty below a job's storage.
    """
    match = re.fullmatch(r"(?:(.*)/)?([^/]+)/chk-([0-9]+)/_metadata", path)
    if match is None or int(match[3]) > _HIGHEST_ID:
        return None
    return match[1] or "", match[2], int(match[3])


def is_file(path: str) -> bool:
    """Tells whether a path has the form of a physical file with segments."""
    return _FILE.fullmatch(path) is not None


def is_manifest(path: str) -> bool:
    """Tells whether a path has the form of a manifest below a job's storage."""
    return (parts := split_manifest_path(path)) is not None and not parts[0]


def is_unfinished(path: str) -> bool:
    """Tells whether a path has the form of an unfinished write, in a directory that a job makes."""
    return _UNFINISHED.fullmatch(path) is not None


def is_directory(path: str) -> bool:
    """Tells whether a path has the form of a directory that a job makes below its root."""
    return _MADE.fullmatch(path) is not None


def epoch_of(path: str) -> int | None:
    """Returns the run whose task manager a path belongs to; None for other paths."""
    match = re.fullmatch(r"[^/]+/taskmanager-owned/([0-9]+)-[^/]+/[^/]+", path)
    return int(match[1]) if match and int(match[1]) <= _HIGHEST_ID else None


def owner_directory(job_id: str) -> str:
    """Returns where the owner objects of a job's root lie."""
    return f"{job_id}/owner"


def owner_file(job_id: str, generation: int) -> str:
    """Returns the path of an owner object; the paths of later generations sort behind."""
    return f"{owner_directory(job_id)}/{generation:020}"


def generation_of(path: str) -> int | None:
    """Returns the generation of an owner object, a number from 1; None for other paths."""
    match = re.fullmatch(r"[^/]+/owner/([0-9]{20})", path)
    return int(match[1]) if match and 0 < int(match[1]) <= _HIGHEST_ID else None


def owns(job_id: str, path: str) -> bool:
    """Tells whether a path lies under the job's own root, and only there."""
    parts = path.split("/")
    return len(parts) > 1 and parts[0] == job_id and all(p not in ("", ".", "..") for p in parts)
