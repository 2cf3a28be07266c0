from __future__ import annotations

import pytest

from cairn.layout import (
    epoch_of,
    exclusive_file,
    manifest_file,
    owns,
    shared_file,
    split_manifest_path,
    task_manager_file,
)

JOB = "clicks-1a2b3c4d"


@pytest.mark.parametrize(
    "path",
    [
        shared_file(JOB, 0, 2, "file"),
        task_manager_file(JOB, "1-executor", "file"),
        exclusive_file(JOB, 7, 0, "file"),
        manifest_file(JOB, 7),
    ],
)
def test_a_job_owns_what_lies_under_its_root(path: str) -> None:
    assert owns(JOB, path)
    assert not owns("clicks", path)


@pytest.mark.parametrize(
    "path",
    [
        JOB,
        f"{JOB}/",
        f"/{JOB}/shared/file.seg",
        f"{JOB}/../another-job/file.seg",
        f"{JOB}/shared/../../another-job/file.seg",
        f"{JOB}/./file.seg",
        f"{JOB}//file.seg",
    ],
)
def test_a_path_that_may_lead_out_of_the_jobs_root_is_not_its_own(path: str) -> None:
    assert not owns(JOB, path)


@pytest.mark.parametrize("number", ["99999999999999999999", "٣", "-1"])
def test_a_checkpoint_or_epoch_that_no_job_reaches_is_of_another_program(number: str) -> None:
    assert split_manifest_path(f"clicks-1/chk-{number}/_metadata") is None
    assert epoch_of(f"clicks-1/taskmanager-owned/{number}-ab/x.seg") is None
