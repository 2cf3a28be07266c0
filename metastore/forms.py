"""The forms of what says where a job's objects are (`cairn.layout`), as conditions of constraints.

The maintenance deletes what rows name. So a row that a job writes cannot name what no job has.
"""

from __future__ import annotations

_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NUMBER = "[0-9]{1,19}"
_NAME = "[A-Za-z0-9_-]{1,100}"
_SUBTASK = f"shared/subtask-{_NUMBER}-{_NUMBER}"
_TASK_MANAGER = f"taskmanager-owned/{_NAME}"
_MAINTENANCE = f"maintenance/{_UUID}"

JOB_ID_FORM = "job_id ~ '^[a-z0-9][a-z0-9-]{0,39}-[0-9a-f]{8}$'"

# Escapes of a dot and a slash are other spellings of a path. No URL of Cairn's has them.
STORAGE_FORM = (
    r"storage ~ '^(file:///|file://(/[!-.0-~]+)+|s3://[A-Za-z0-9][A-Za-z0-9._-]*(/[^/?#]+)*)$'"
    r" AND storage !~* '/\.{1,2}(/|$)|%(2e|2f|00)|[\u0001-\u001f\u007f]'"
)


def _below_job(form: str) -> str:
    """Returns the condition that a path is the job's id and what has a form."""
    return f"starts_with(path, job_id || '/') AND substr(path, length(job_id) + 2) ~ '^({form})$'"


DIRECTORY_FORM = _below_job(f"{_SUBTASK}|{_TASK_MANAGER}|{_MAINTENANCE}")
FILE_FORM = _below_job(
    f"({_SUBTASK}|{_TASK_MANAGER}|{_MAINTENANCE})/{_UUID}[.]seg"
    f"|exclusive/{_NUMBER}-{_NUMBER}-{_UUID}[.]seg"
    f"|chk-{_NUMBER}/_metadata"
)
