"""Fixtures for everybody: PostgreSQL, a fresh metastore per test, local storage, Spark."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from sqlalchemy import text

from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.catalog.embedded import resolve_url, stop
from cairn.catalog.migrate import migrate
from tests.databases import Databases, connect, create, drop
from tests.scratch import keep_files_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Without a deadline: a machine under load is slow, which is no defect. What decides over a change
# draws the same examples each time; every other run draws new ones.
hypothesis.settings.register_profile(
    "cairn", deadline=None, derandomize="CI" in os.environ, print_blob=True
)
hypothesis.settings.load_profile("cairn")

# Before pytest, and the workers that it starts, ask where temporary files are.
keep_files_in_memory()

S3_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_DEFAULT_REGION",
)


STORAGES = "file:/// s3://bench"
"""Where the tests have their storages, which cleanups may delete in."""

GUARDS = {
    "spark": ("JAVA_TOOL_OPTIONS", "-XX:TestWithoutTheMarkSpark"),
    "airflow": ("AIRFLOW__LOGGING__LOGGING_LEVEL", "test-without-the-mark-airflow"),
}
"""By mark, the variable that keeps a JVM or Airflow from starting in a test without the mark."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses a test that uses the session's JVM or Airflow and lacks the mark."""
    for fixture, mark in (("spark", "spark"), ("airflow", "airflow")):
        for item in items:
            uses = fixture in getattr(item, "fixturenames", ())
            if uses and item.get_closest_marker(mark) is None:
                raise pytest.UsageError(f"{item.nodeid} uses {fixture}: mark it pytest.mark.{mark}")


def pytest_collection_finish() -> None:
    """Spares the garbage collector all that was imported and collected, a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Lets no JVM and no Airflow start in a test, its fixtures and its processes unmarked."""
    with pytest.MonkeyPatch.context() as patch:
        for mark, (variable, value) in GUARDS.items():
            if item.get_closest_marker(mark) is None:
                patch.setenv(variable, value)
        return (yield)


@pytest.fixture(autouse=True, scope="session")
def _clean_environment() -> Iterator[None]:
    """Keeps the machine's Cairn and AWS settings out of the tests.

    Only the credentials stay where `CAIRN_TEST_S3_ENDPOINT` names a server that they are for.
    """
    kept = S3_CREDENTIALS if "CAIRN_TEST_S3_ENDPOINT" in os.environ else ()
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("CAIRN_", "AWS_")) and not name.startswith(("CAIRN_TEST_", *kept)):
                patch.delenv(name)
        patch.setenv("CAIRN_STORAGES", STORAGES)
        yield


@pytest.fixture(autouse=True)
def _own_storages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoes what a test, such as that of a benchmark, sets in this process."""
    monkeypatch.setenv("CAIRN_STORAGES", STORAGES)


@pytest.fixture(autouse=True)
def _local_state_is_closed() -> Iterator[None]:
    """Closes what a test left open: Spark's callbacks wait on `select`, which ends at file 1024."""
    yield
    if open_stores := sys.modules.get("cairn.runtime.executor.open_stores"):
        open_stores.close_all()


@pytest.fixture(autouse=True)
def _runs_are_not_watched_any_more() -> Iterator[None]:
    """Forgets the runs that a test has registered: their metastore is another test's next."""
    yield
    if run_watch := sys.modules.get("cairn.runtime.driver.run_watch"):
        run_watch._watch._runs.clear()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL server for the session; the URL is of a migrated database, the template."""
    directory = Path(tempfile.mkdtemp(prefix="cairn-test-"))
    metastore = f"embedded:{directory}"
    try:
        url = resolve_url(metastore)
        with connect(url) as connection:
            # What a crash of the machine would lose is lost anyway: the tests are over then.
            for setting in ("fsync", "full_page_writes"):
                connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
            connection.execute(text("SELECT pg_reload_conf()"))
        migrate(Catalog(url))
        dispose_engines()
        yield url
    finally:
        stop(metastore)
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def databases(postgres: str) -> Databases:
    """The migrated databases of the session's server, which tests use one after another."""
    return Databases(postgres, template="cairn")


@pytest.fixture
def metastore_url(databases: Databases) -> Iterator[str]:
    """The URL of a migrated metastore without rows."""
    with databases.one() as url:
        yield url


@pytest.fixture(scope="module")
def shared_metastore_url(databases: Databases) -> Iterator[str]:
    """The URL of a migrated metastore that the tests of a module share, with a job each."""
    with databases.one() as url:
        yield url


@pytest.fixture
def other_url(databases: Databases) -> Iterator[str]:
    """The URL of one more migrated metastore without rows."""
    with databases.one() as url:
        yield url


@pytest.fixture
def empty_database_url(postgres: str) -> Iterator[str]:
    """The URL of a fresh database without a schema."""
    url = create(postgres, template="template1")
    yield url
    dispose_engines()
    drop(url)


@pytest.fixture
def tmp_storage(tmp_path: Path) -> str:
    """The `file://` URL of an empty directory, such as a job's first start makes it."""
    (tmp_path / "storage").mkdir()
    return (tmp_path / "storage").as_uri()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from tests.streams.streams import new_session  # Spark is for the tests that ask for it

    session = new_session("local[2,2]")
    yield session
    session.stop()
