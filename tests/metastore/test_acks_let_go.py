"""An ack lets others have its locks before it is durable, and is answered after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, NullPool, create_engine, text

from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.catalog.embedded import resolve_url
from cairn.catalog.migrate import migrate
from tests.metastore.steps import Steps, acknowledging


@pytest.fixture
def steps(directory: Path, tmp_path: Path) -> Steps:
    """A job on a server of the test's own, whose settings it changes."""
    url = resolve_url(f"embedded:{directory}")
    migrate(Catalog(url))
    return Steps(url, tmp_path.as_uri())


@pytest.fixture
def onlooker(steps: Steps) -> Iterator[Connection]:
    """A connection that waits for no standby."""
    engine = create_engine(steps.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("SET synchronous_commit = local"))
        yield connection
        wait_for_standby(connection, "")


def wait_for_standby(connection: Connection, name: str) -> None:
    """Lets no commit be durable until the standby of this name has it; without one: at once."""
    connection.execute(text(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'"))
    connection.execute(text("SELECT pg_reload_conf()"))
    time.sleep(0.3)


def until_seen(connection: Connection, sql: str, wanted: int) -> None:
    give_up = time.monotonic() + 10
    while connection.scalar(text(sql)) != wanted:
        assert time.monotonic() < give_up, sql
        time.sleep(0.01)


def test_an_ack_that_is_not_durable_holds_up_no_other_and_is_not_answered(
    steps: Steps, onlooker: Connection
) -> None:
    epoch = steps.register(parallelism=2)
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    works = [acknowledging(batch, 1, *steps.group(batch, 1, [subtask])) for subtask in (0, 1)]
    wait_for_standby(onlooker, "nobody")
    with ThreadPoolExecutor(2) as threads:
        answers: list[Future[None]] = []
        for number, work in enumerate(works, start=1):
            answers.append(threads.submit(steps.run_each, work))
            until_seen(onlooker, "SELECT count(*) FROM cairn.group_commits", number)
        until_seen(onlooker, "SELECT count(*) FROM cairn.checkpoints WHERE status = 'COMPLETED'", 1)
        assert not any(answer.done() for answer in answers)
        wait_for_standby(onlooker, "")
        for answer in answers:
            answer.result(timeout=10)


def test_an_ack_that_comes_too_late_waits_for_what_it_has_seen(
    steps: Steps, onlooker: Connection
) -> None:
    epoch = steps.register(parallelism=1)
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    work = acknowledging(batch, 1, *steps.group(batch, 1, [0]))
    wait_for_standby(onlooker, "nobody")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(steps.run_each, work)
        until_seen(onlooker, "SELECT count(*) FROM cairn.group_commits", 1)
        again = threads.submit(steps.run_each, work)
        time.sleep(0.5)
        assert not again.done(), "what it has seen may still be lost"
        wait_for_standby(onlooker, "")
        first.result(timeout=10)
        again.result(timeout=10)


def test_what_an_ack_writes_is_on_disk_when_it_is_answered(steps: Steps) -> None:
    epoch = steps.register(parallelism=1)
    flushed = []
    for batch_id in range(10):
        steps.whole_batch(epoch, batch_id)
        flushed += steps.sql("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()")
    # Something of the server's own may have written in between.
    assert flushed.count((True,)) >= 8, flushed


def test_nothing_of_an_ack_stays_in_its_session(steps: Steps) -> None:
    epoch = steps.register(parallelism=1)
    steps.whole_batch(epoch, 0)
    settings = "SELECT current_setting('synchronous_commit'), current_setting('cairn.answer')"
    assert steps.sql(settings) == [("on", "")]
    dispose_engines()
