"""Who may write: one rule for every transaction of a run that has begun."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from cairn.batch_ref import BatchRef
from cairn.catalog.job.materializations import install, record_start
from cairn.catalog.savepoints.manifest_rows import intend_manifest
from cairn.errors import FencedError
from tests.metastore.steps import Steps, acknowledging

Transaction = Callable[[Steps, BatchRef], None]


def intend(steps: Steps, batch: BatchRef) -> None:
    steps.intend(batch)


def acknowledge(steps: Steps, batch: BatchRef) -> None:
    steps.run(acknowledging(batch, 2, [], None))


def start_materialization(steps: Steps, batch: BatchRef) -> None:
    steps.run(lambda c: record_start(c, batch, 0, uuid4()))


def install_materialization(steps: Steps, batch: BatchRef) -> None:
    steps.run(lambda c: install(c, batch, 0, []))


def write_manifest(steps: Steps, batch: BatchRef) -> None:
    steps.run(lambda c: intend_manifest(c, batch.job_id, 1, epoch=batch.epoch))


WRITES = (
    intend,
    acknowledge,
    start_materialization,
    install_materialization,
    write_manifest,
)


@pytest.fixture
def steps(shared_metastore_url: str, tmp_storage: str) -> Steps:
    """Run 1 made checkpoint 1, run 2 has begun batch 1, run 3 is registered."""
    steps = Steps(shared_metastore_url, tmp_storage)
    steps.register()
    steps.whole_batch(1, 0)
    steps.register()
    steps.begin(steps.ref(2, 1))
    steps.register()
    return steps


@pytest.mark.parametrize("write", WRITES)
def test_a_run_that_was_replaced_writes_nothing(
    steps: Steps, write: Transaction, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cairn")
    before = steps.dump()
    with pytest.raises(FencedError, match="run 1 was replaced by run 2"):
        write(steps, steps.ref(1, 1))
    assert steps.dump() == before
    assert f"run 1 of job {steps.name} is fenced" in caplog.text


@pytest.mark.parametrize("write", WRITES)
def test_a_run_that_has_not_begun_here_writes_nothing(steps: Steps, write: Transaction) -> None:
    """It may have begun in a metastore that was lost, of which this one is a backup."""
    before = steps.dump()
    with pytest.raises(FencedError, match="run 3 was replaced by run 2"):
        write(steps, steps.ref(3, 1))
    assert steps.dump() == before
