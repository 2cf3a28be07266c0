"""A connection that breaks after a commit, before the answer: what ran again changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cairn.catalog.catalog import dispose_engines
from cairn.catalog.savepoints.pins import remove_pins
from cairn.savepoints.write_manifest import pin
from metastore.enums import PinKind
from tests.metastore.steps import Steps
from tests.metastore.wire import Relay, relay

IDS = re.compile(r"[0-9a-f]{64}|[0-9a-f]{8}-[0-9a-f-]{27}|job-[0-9a-f]{8}(-[0-9a-f]{8})?")
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.+]+|'\w+_ms': \d+")


@pytest.fixture
def way(shared_metastore_url: str) -> Iterator[Relay]:
    with relay(shared_metastore_url) as made:
        yield made
        dispose_engines()


def live(steps: Steps) -> None:
    """Does everything that a job, its materializations, its savepoints and a cleanup commit."""
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    checkpoint_id = steps.begin(batch).checkpoint_id
    steps.ack(batch, checkpoint_id, 0)
    steps.ack(batch, checkpoint_id, 1)
    as_of = steps.whole_batch(epoch, 1)
    batch = steps.ref(epoch, 2)
    steps.begin(batch)
    steps.install(batch, steps.base(batch, as_of, (0, 4)), steps.base(batch, as_of, (4, 8)))
    saved = pin(steps.catalog, steps.name, None, kind=PinKind.SAVEPOINT)
    epoch = steps.register()
    for batch_id in (2, 3, 4, 5):
        steps.whole_batch(epoch, batch_id)
    steps.run(lambda c: remove_pins(c, steps.name, [saved.pin_id]))
    steps.clean()


def result(steps: Steps) -> dict[str, list[str]]:
    """Returns the job's rows without ids, times and the checksum of a manifest with them."""
    return {
        table: sorted(TIMES.sub("time", IDS.sub("id", row)) for row in rows)
        for table, rows in steps.dump().items()
    }


@pytest.mark.slow
def test_each_commit_of_a_jobs_life_may_lose_its_answer(
    shared_metastore_url: str, way: Relay, tmp_path: Path
) -> None:
    def one_life(loses: int | None) -> tuple[int, dict[str, list[str]]]:
        way.commits, way.loses = 0, loses
        steps = Steps(way.url, tmp_path.as_uri())
        live(steps)
        return way.commits, result(Steps(shared_metastore_url, "", steps.name, steps.job_id))

    commits, expected = one_life(None)
    assert commits > 25
    assert any("SUBSUMED" in row for row in expected["checkpoints"])
    assert any("DELETED" in row for row in expected["physical_files"])
    for number in range(1, commits + 1):
        assert one_life(number)[1] == expected, f"answer {number} of {commits} was lost"
