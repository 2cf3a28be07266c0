"""A metastore that was restored, copied or failed over: what it may still do."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from sqlalchemy import make_url, text

from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.catalog.embedded import resolve_url, stop
from cairn.catalog.migrate import migrate
from cairn.cli import main
from cairn.errors import RefusedError
from cairn.maintenance.cleanup import cleanup_job
from cairn.ownership.take import own_root, take_over
from tests.databases import be_restored, connect, create, drop
from tests.maintenance.synthetic import SyntheticJob, dump
from tests.runtime.tasks import remembered
from tests.savepoints.jobs import Query

IDENTITY = "SELECT cairn.database_id() AS database_id, cairn.timeline() AS timeline"


def identity(url: str, role: str | None = None) -> tuple[str, int]:
    with connect(url) as connection:
        if role is not None:
            connection.execute(text(f"SET ROLE {role}"))
        row = connection.execute(text(IDENTITY)).one()
        return row.database_id, row.timeline


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage).create()


@pytest.fixture
def copied_url(job: SyntheticJob, postgres: str) -> Iterator[str]:
    """A copy of the job's metastore in another database of the server."""
    dispose_engines()
    with connect(postgres) as connection:
        connection.execute(
            text("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = :d"),
            {"d": make_url(job.url).database},
        )
    url = create(postgres, template=str(make_url(job.url).database))
    yield url
    dispose_engines()
    drop(url)


@pytest.fixture
def server() -> Iterator[Path]:
    """The directory of an embedded server of the test's own."""
    directory = Path(mkdtemp(prefix="cairn-test-"))
    yield directory
    dispose_engines()
    stop(f"embedded:{directory}")
    shutil.rmtree(directory)


def recover(directory: Path) -> str:
    """Ends the server and has it recover from its archive, which is empty; returns its URL."""
    dispose_engines()
    stop(f"embedded:{directory}")
    data = directory / "data"
    signal, settings = data / "recovery.signal", data / "postgresql.auto.conf"
    signal.touch()
    with settings.open("a") as file:
        file.write("restore_command = 'false'\n")
    owner = data.stat()
    os.chown(signal, owner.st_uid, owner.st_gid)
    url = resolve_url(f"embedded:{directory}")
    give_up = time.monotonic() + 60
    with connect(url) as connection:
        while connection.scalar(text("SELECT pg_is_in_recovery()")):
            assert time.monotonic() < give_up, (data / "log").read_text()[-3000:]
            time.sleep(0.1)
    return url


def test_a_metastore_that_was_recovered_deletes_nothing_until_it_takes_over(
    server: Path, tmp_storage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = resolve_url(f"embedded:{server}")
    migrate(Catalog(url))
    query = Query(url, tmp_storage, str(tmp_path / "local")).start()
    for batch_id in range(5):
        query.batch(batch_id, materializes=[0, 1] if batch_id == 2 else [])
    before = identity(url)
    query.url = recover(server)
    assert identity(query.url) == (before[0], before[1] + 1)
    query.batch(5)
    caplog.clear()
    assert query.start().state(query.batch(6)) == remembered(7), "streams go on"
    [warning] = [r for r in caplog.records if r.name == "cairn.ownership.take"]
    assert "was on timeline 1" in warning.message
    rows, objects = dump(query.url), set(query.store.list(""))
    with pytest.raises(
        RefusedError,
        match=r"was on timeline 1 .* on timeline 2 now.*restored .*failed over.*may be lost.*"
        r"cairn verify words.*cairn metastore take-over words",
    ):
        cleanup_job(query.catalog, "words")
    assert (dump(query.url), set(query.store.list(""))) == (rows, objects)
    assert main(["metastore", "take-over", "words", "--metastore", query.url]) == 0
    assert cleanup_job(query.catalog, "words").subsumed_checkpoints > 0
    assert query.state(query.batch(7)) == remembered(8)


def test_a_copy_in_another_database_is_another_metastore(
    job: SyntheticJob, copied_url: str
) -> None:
    before = job.objects()
    with pytest.raises(RefusedError, match=r"this one, database .*, is a copy of it"):
        cleanup_job(Catalog(copied_url), job.name)
    with pytest.raises(RefusedError, match="is a copy of it"):
        own_root(Catalog(copied_url), job.store, job.job_id)
    assert job.objects() == before
    assert cleanup_job(job.catalog, job.name).deleted_files == job.DOOMED


def test_a_copy_that_takes_over_fences_the_original(job: SyntheticJob, copied_url: str) -> None:
    before = job.objects()
    take_over(Catalog(copied_url), job.store, job.job_id)
    with pytest.raises(RefusedError, match="is a copy of it"):
        cleanup_job(job.catalog, job.name)
    assert job.objects() == before
    assert cleanup_job(Catalog(copied_url), job.name).deleted_files == job.DOOMED


def test_of_two_that_are_alike_the_one_that_takes_over_fences_the_other(
    job: SyntheticJob, copied_url: str
) -> None:
    """As after a copy of the data directory: every id and the timeline are the same."""
    be_restored(copied_url, job.url, timeline=identity(job.url)[1])
    take_over(Catalog(copied_url), job.store, job.job_id)
    with pytest.raises(RefusedError, match="generation 2"):
        cleanup_job(job.catalog, job.name)


def test_a_dump_that_is_restored_in_place_is_another_metastore(job: SyntheticJob) -> None:
    dispose_engines()
    plain = make_url(job.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with connect(job.url) as connection:
        binaries = connection.scalar(text("SELECT setting FROM pg_config WHERE name = 'BINDIR'"))
    dumped = subprocess.run(
        [f"{binaries}/pg_dump", "--schema=cairn", "--clean", plain],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    subprocess.run(
        [f"{binaries}/psql", "--quiet", "--set=ON_ERROR_STOP=1", plain],
        input=dumped,
        check=True,
        capture_output=True,
        text=True,
    )
    with pytest.raises(RefusedError, match="is a copy of it"):
        cleanup_job(job.catalog, job.name)
    take_over(job.catalog, job.store, job.job_id)
    assert cleanup_job(job.catalog, job.name).deleted_files == job.DOOMED


def test_a_manifest_that_this_metastore_does_not_know_tells_of_a_lost_history(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    """As after a snapshot of the server's volume, whose timeline is the same."""
    query = Query(metastore_url, tmp_storage, str(tmp_path / "local"), interval=1).start()
    for batch_id in range(6):
        query.batch(batch_id)
    [(next_id,)] = query.sql("SELECT next_checkpoint_id FROM cairn.jobs")
    with connect(query.url) as connection:
        connection.execute(text("SET session_replication_role = replica"))
        connection.execute(text("UPDATE cairn.jobs SET next_checkpoint_id = 4"))
    objects = set(query.store.list(""))
    with pytest.raises(
        RefusedError, match=r"manifest of checkpoint 5 of .* \(the next one is 4\).*take-over words"
    ):
        cleanup_job(query.catalog, "words")
    assert set(query.store.list("")) == objects
    taken = take_over(query.catalog, query.store, query.plan.job_id)
    assert taken.newest_manifest == 5
    assert query.sql("SELECT next_checkpoint_id FROM cairn.jobs") == [(10_006,)]
    assert next_id < 10_006
    cleanup_job(query.catalog, "words")


@pytest.mark.parametrize("role", ["cairn_writer", "cairn_maintainer"])
def test_every_role_sees_the_same_identity(metastore_url: str, role: str) -> None:
    assert identity(metastore_url, role) == identity(metastore_url)


def test_a_server_that_does_not_tell_its_identifier_is_told_by_its_database(
    metastore_url: str,
) -> None:
    database_id, _ = identity(metastore_url)
    with Catalog(metastore_url).begin() as connection:
        connection.execute(text("CREATE ROLE plain NOLOGIN"))
        connection.execute(text("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"))
        connection.execute(text("ALTER FUNCTION cairn.database_id() OWNER TO plain"))
        connection.execute(text("GRANT USAGE ON SCHEMA cairn TO plain"))
        found = connection.scalar(text("SELECT cairn.database_id()"))
        assert found == "unknown-" + database_id.partition("-")[2]
        connection.rollback()
