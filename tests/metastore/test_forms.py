"""What a row may say of where objects are: with the writer's role, no row leads elsewhere."""

from __future__ import annotations

from uuid import uuid4

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from cairn.layout import (
    exclusive_file,
    manifest_file,
    new_job_id,
    shared_directory,
    shared_file,
    task_manager_directory,
)
from metastore.models import Job
from tests.metastore.rows import Rows

FILE_ID = "0b7c3c1e-5a55-4f5c-8c43-1f2d3e4f5a6b"


@pytest.fixture
def writer(rows: Rows) -> Rows:
    """The same job, as a streaming job's login sees it."""
    return Rows(rows.url, job_id=rows.job_id, role="cairn_writer")


def add_job(writer: Rows, *, job_id: str | None = None, storage: str = "file:///state") -> None:
    facts = {"max_parallelism": 8, "num_retained": 2, "key_schema": {}, "storage": storage}
    job_id = job_id or f"evil-{uuid4().hex[:8]}"
    writer.execute(insert(Job).values(job_id=job_id, name=f"{job_id}-{uuid4()}", **facts))


@pytest.mark.parametrize("name", ["clicks", "日本", "-" * 60, "A" * 255, "a" * 39 + " b", "0"])
def test_every_job_id_that_is_made_has_the_form(writer: Rows, name: str) -> None:
    add_job(writer, job_id=new_job_id(name))


@pytest.mark.parametrize(
    "job_id",
    ["etc", "shared", "..", "a/b-1a2b3c4d", "../a-1a2b3c4d", "A-1a2b3c4d", "-1a2b3c4d", "a-1a2b3c4",
     "a-1a2b3c4d\n", "a.b-1a2b3c4d", f"{'a' * 41}-1a2b3c4d"],
)  # fmt: skip
def test_a_job_id_of_another_form_is_refused(writer: Rows, job_id: str) -> None:
    with pytest.raises(IntegrityError, match="ck_jobs__job_id_form"):
        add_job(writer, job_id=job_id)


@pytest.mark.parametrize(
    "storage",
    ["file:///", "file:///state", "file:///a%20b/%C3%A9", "s3://bucket", "s3://b.c-d/e f/é/..g"],
)
def test_a_storage_in_its_normal_form_is_taken(writer: Rows, storage: str) -> None:
    add_job(writer, storage=storage)


@pytest.mark.parametrize(
    "storage",
    ["", "/etc", "etc", "ftp://host/x", "file://host/x", "file:///a/", "file:///a//b",
     "file:///a/../etc", "file:///a/./b", "file:///..", "file:///a/%2E%2e/etc", "file:///a%2fb",
     "file:///a\nb", "s3://", "s3:///a", "s3://bucket/", "s3://bucket/../other", "s3://b/a?x=1",
     "s3://user:word@bucket", "s3://bucket/a\x01"],
)  # fmt: skip
def test_a_storage_in_another_form_is_refused(writer: Rows, storage: str) -> None:
    with pytest.raises(IntegrityError, match="ck_jobs__storage_form"):
        add_job(writer, storage=storage)


def test_every_path_of_the_layout_is_taken(writer: Rows) -> None:
    job_id = writer.job_id
    for path in (
        shared_file(job_id, 0, 4, FILE_ID),
        exclusive_file(job_id, 7, 0, FILE_ID),
        manifest_file(job_id, 7),
        f"{task_manager_directory(job_id, '12-0123456789ab')}/{FILE_ID}.seg",
        f"{task_manager_directory(job_id, '12-restored')}/{FILE_ID}.seg",
    ):
        writer.file("WRITING", path=path)
    writer.directory(path=shared_directory(job_id, 0, 4))
    writer.directory(path=task_manager_directory(job_id, "12-0123456789ab"))


@pytest.mark.parametrize(
    "path",
    ["passwd", "{job}/passwd", "{job}", "{job}/", "/etc/passwd",
     "other-1a2b3c4d/shared/subtask-0-1/{id}.seg", "{job}x/shared/subtask-0-1/{id}.seg",
     "{job}/../other-1a2b3c4d/shared/subtask-0-1/{id}.seg",
     "{job}/shared/../../other-1a2b3c4d/{id}.seg", "{job}/shared/subtask-0-1/../{id}.seg",
     "{job}/shared/subtask-0-1/{id}.seg\n", "{job}/shared/subtask-0-1/{id}",
     "{job}/shared/x/{id}.seg", "{job}/taskmanager-owned/a.b/{id}.seg",
     "{job}/taskmanager-owned/../{id}.seg", "{job}/chk-1/_metadata/x", "{job}/chk-x/_metadata",
     "{job}/exclusive/1-{id}.seg"],
)  # fmt: skip
def test_a_file_at_another_path_is_refused(writer: Rows, path: str) -> None:
    with pytest.raises(IntegrityError, match="ck_physical_files__path_form"):
        writer.file("WRITING", path=path.format(job=writer.job_id, id=FILE_ID))


@pytest.mark.parametrize(
    "path",
    ["{job}", "{job}/shared", "{job}/..", "other-1a2b3c4d/shared/subtask-0-1", "{job}/chk-1",
     "{job}/taskmanager-owned/..", "{job}/taskmanager-owned", "{job}/shared/subtask-0-1/x"],
)  # fmt: skip
def test_a_directory_at_another_path_is_refused(writer: Rows, path: str) -> None:
    with pytest.raises(IntegrityError, match="ck_directories__path_form"):
        writer.directory(path=path.format(job=writer.job_id))
