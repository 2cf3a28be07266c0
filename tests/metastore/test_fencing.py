"""Who may write: one rule for every transaction of a run that has begun."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from cairn.batch_ref import BatchRef
from cairn.catalog.job.files import IntendedFile, intend_files, intend_initial_rows
from cairn.catalog.job.materializations import install, record_start
from cairn.catalog.savepoints.adopt import adopt_checkpoint, intend_copy
from cairn.catalog.savepoints.manifest_rows import describe_checkpoint, intend_manifest
from cairn.errors import FencedError
from cairn.layout import task_manager_file
from metastore.enums import Scope
from tests.metastore.steps import Steps, acknowledging

Transaction = Callable[[Steps, BatchRef], None]


def intend(steps: Steps, batch: BatchRef) -> None:
    steps.intend(batch)


def intend_in_a_claimed_directory(steps: Steps, batch: BatchRef) -> None:
    file_id = str(uuid4())
    path = task_manager_file(batch.job_id, "tm", file_id)
    file = IntendedFile(file_id=file_id, path=path, scope=Scope.TASK_MANAGER)
    steps.run_each(lambda c: intend_files(c, batch, [file]))


def acknowledge(steps: Steps, batch: BatchRef) -> None:
    steps.run(acknowledging(batch, 2, [], None))


def start_materialization(steps: Steps, batch: BatchRef) -> None:
    steps.run(lambda c: record_start(c, batch, 0, uuid4()))


def install_materialization(steps: Steps, batch: BatchRef) -> None:
    steps.run(lambda c: install(c, batch, 0, []))


def write_manifest(steps: Steps, batch: BatchRef) -> None:
    manifest = steps.run(lambda c: describe_checkpoint(c, batch.job_id, 1))
    steps.run(lambda c: intend_manifest(c, manifest, run=batch))


def begin(steps: Steps, batch: BatchRef) -> None:
    steps.begin(batch)


def write_initial_rows(steps: Steps, batch: BatchRef) -> None:
    file = IntendedFile(file_id=str(uuid4()), path=f"{uuid4()}.rows", scope=Scope.TASK_MANAGER)
    steps.run(lambda c: intend_initial_rows(c, batch, file, steps.directory))


def copy_a_file(steps: Steps, batch: BatchRef) -> None:
    steps.run(lambda c: intend_copy(c, batch, str(uuid4()), f"{uuid4()}.copy"))


def adopt(steps: Steps, batch: BatchRef) -> None:
    def work(connection: Connection) -> None:
        origin = describe_checkpoint(connection, batch.job_id, 1)
        adopt_checkpoint(connection, batch, origin, [])

    steps.run(work)


OF_A_RUN_THAT_MAY_BEGIN = (begin, write_initial_rows, copy_a_file, adopt)
WRITES = (
    intend,
    intend_in_a_claimed_directory,
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
    assert f"fenced: run 1 was replaced by run 2 [job {steps.name}]" in caplog.text


@pytest.mark.parametrize("write", WRITES)
def test_a_run_that_has_not_begun_here_writes_nothing(steps: Steps, write: Transaction) -> None:
    """It may have begun in a metastore that was lost, of which this one is a backup."""
    before = steps.dump()
    with pytest.raises(FencedError, match="run 3 was replaced by run 2"):
        write(steps, steps.ref(3, 1))
    assert steps.dump() == before


@pytest.fixture
def lost(shared_metastore_url: str, tmp_storage: str) -> tuple[Steps, BatchRef]:
    """Run 1 made checkpoint 1; a failover lost run 2, whose batch 1 is returned, too."""
    steps = Steps(shared_metastore_url, tmp_storage)
    steps.register()
    steps.whole_batch(1, 0)
    steps.begin(steps.ref(1, 1))
    batch = steps.ref(steps.register(), 1)

    def forget(connection: Connection) -> None:
        # As a replica does that has not received the row: without triggers.
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        deletion = text("DELETE FROM cairn.runs WHERE job_id = :job AND epoch = 2")
        assert connection.execute(deletion, {"job": steps.job_id}).rowcount == 1

    steps.run(forget)
    return steps, batch


@pytest.mark.parametrize("write", [*WRITES, *OF_A_RUN_THAT_MAY_BEGIN])
def test_a_lost_run_writes_nothing_under_the_epoch_that_another_was_given(
    lost: tuple[Steps, BatchRef], write: Transaction
) -> None:
    steps, batch = lost
    assert steps.register() == batch.epoch
    steps.begin(steps.ref(2, 1))
    before = steps.dump()
    with pytest.raises(FencedError, match="knows another run, or none, under the epoch of run 2"):
        write(steps, batch)
    assert steps.dump() == before


@pytest.mark.parametrize("write", OF_A_RUN_THAT_MAY_BEGIN)
@pytest.mark.parametrize("is_given", [True, False])
def test_a_lost_run_does_not_begin_whether_its_epoch_was_given_again_or_not(
    lost: tuple[Steps, BatchRef], write: Transaction, is_given: bool
) -> None:
    steps, batch = lost
    if is_given:
        steps.register()
    before = steps.dump()
    with pytest.raises(FencedError, match="knows another run, or none, under the epoch of run 2"):
        write(steps, batch)
    assert steps.dump() == before
