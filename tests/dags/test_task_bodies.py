"""What the tasks do with a report, in a process that has Airflow."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Connection, insert, text

from cairn.catalog.catalog import Catalog
from cairn.layout import shared_directory
from metastore.enums import Scope
from metastore.models import PhysicalFile
from tests.dags.conftest import Airflow
from tests.maintenance.synthetic import SyntheticJob

pytestmark = pytest.mark.airflow


def test_deletes_that_fail_fail_the_task_so_that_it_is_retried(
    airflow: Airflow, metastore_url: str, tmp_storage: str
) -> None:
    job = SyntheticJob(metastore_url, tmp_storage).create()
    directory = shared_directory(job.job_id, 0, 9)
    loop = Path(job.storage.removeprefix("file://")) / directory
    loop.symlink_to(loop.name)  # a link to itself: nothing below it can be reached

    def add(connection: Connection) -> None:
        connection.execute(
            insert(PhysicalFile).values(
                file_id=uuid4(),
                job_id=job.job_id,
                epoch=1,
                path=f"{directory}/{uuid4()}.seg",
                scope=Scope.SHARED,
                created_at=text("now() - interval '1 hour'"),
            )
        )

    Catalog(metastore_url).run("adding a file", add)
    name, message = airflow.ask("clean", job.name, metastore_url)
    assert name == "StorageError"
    assert f"1 objects could not be deleted ({job.DOOMED} were)" in message
    assert job.objects() == job.needed


def test_the_summary_adds_up_the_reports(airflow: Airflow) -> None:
    reports = [
        {"job": "a", "dry_run": False, "deleted_files": 2, "freed_bytes": 10},
        {"job": "b", "dry_run": False, "deleted_files": 1, "freed_bytes": 5},
    ]
    assert airflow.ask("total", reports) == {"jobs": 2, "deleted_files": 3, "freed_bytes": 15}
    assert airflow.ask("total", reports[0]) == {"jobs": 1, "deleted_files": 2, "freed_bytes": 10}
    assert airflow.ask("total", []) == airflow.ask("total", None) == {"jobs": 0}


def test_a_pool_without_a_slot_is_told_with_the_command_to_run(airflow: Airflow) -> None:
    for state in (None, "none", "scheduled"):
        assert airflow.ask("slot", {"state": state, "waited_min": 4}) is False
        told = airflow.ask("slot", {"state": state, "waited_min": 5})
        assert "cairn_maintenance has given no slot for 5 min" in told
        assert "airflow pools set cairn_maintenance 4" in told
    for state in ("queued", "running", "success"):
        assert airflow.ask("slot", {"state": state, "waited_min": 9}) is True
