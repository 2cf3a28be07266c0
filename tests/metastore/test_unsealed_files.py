"""What cleanup does with files that are being written, and with those that nobody sealed."""

from __future__ import annotations

import pytest

from cairn.catalog.job.files import seal_files
from cairn.errors import FencedError
from cairn.layout import owner_file
from cairn.storage import open_store
from metastore.enums import Scope
from tests.metastore.steps import SIZE_BYTES, Steps


@pytest.fixture
def steps(shared_metastore_url: str, tmp_storage: str) -> Steps:
    return Steps(shared_metastore_url, tmp_storage)


def test_cleanup_keeps_the_file_that_a_live_run_is_writing(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    acks, file = steps.group(batch, 1, [0, 1])
    steps.let_writes_end()
    steps.clean()
    steps.commit(batch, 1, acks, file)
    assert steps.file_facts(file) == ("SEALED", 2, 2 * SIZE_BYTES)


def test_cleanup_takes_the_file_that_a_fenced_run_was_writing(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    file = steps.intend(batch)
    steps.register()
    steps.let_writes_end()
    steps.clean()
    assert steps.file_facts(file)[0] == "WRITING", "the newer run has not begun"
    steps.begin(steps.ref(2, 0))
    steps.clean()
    assert steps.file_facts(file)[0] == "DELETED"


def test_cleanup_leaves_a_fenced_runs_file_while_its_object_may_still_appear(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    file = steps.intend(batch)
    steps.register()
    steps.begin(steps.ref(2, 0))
    steps.clean()
    assert steps.file_facts(file)[0] == "WRITING"
    open_store(steps.storage).put(steps.path(file), [b"late"])
    steps.let_writes_end()
    steps.clean()
    assert steps.file_facts(file)[0] == "DELETED"
    stored = {found.path for found in open_store(steps.storage).list(steps.job_id)}
    assert stored == {owner_file(steps.job_id, 1)}


def test_cleanup_takes_a_file_that_was_never_sealed_once_its_batch_is_over(steps: Steps) -> None:
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    lost = steps.intend(batch)
    acks, winner = steps.group(batch, 1, [0, 1])
    steps.commit(batch, 1, acks, winner)
    steps.let_writes_end()
    steps.clean()
    assert steps.file_facts(lost)[0] == "WRITING", "an attempt may still seal it"
    steps.begin(steps.ref(epoch, 1))
    steps.clean()
    assert steps.file_facts(lost)[0] == "DELETED"
    assert steps.file_facts(winner)[0] == "SEALED"


def test_cleanup_keeps_the_bases_that_are_being_written_while_batches_continue(
    steps: Steps,
) -> None:
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    base = steps.intend(batch, Scope.SHARED)
    steps.ack(batch, 1, 0, 1)
    steps.begin(steps.ref(epoch, 1))
    steps.let_writes_end()
    steps.clean()
    steps.run(lambda c: seal_files(c, [base]))
    assert steps.file_facts(base)[0] == "SEALED"


@pytest.mark.parametrize("winner", [0, 1, 2])
def test_cleanup_takes_the_requests_for_a_base_that_lost_to_another(
    steps: Steps, winner: int
) -> None:
    batch = steps.ref(steps.register(), 0)
    steps.begin(batch)
    first = steps.intend(batch, Scope.SHARED)
    files = [first, *(steps.intend(batch, Scope.SHARED, first) for _ in range(2))]
    other = steps.intend(batch, Scope.SHARED)
    steps.let_writes_end()
    steps.clean()
    assert [steps.file_facts(file)[0] for file in files] == ["WRITING"] * 3
    steps.run(lambda c: seal_files(c, [files[winner]]))
    steps.clean()
    found = [steps.file_facts(file)[0] for file in files]
    assert found.pop(winner) != "WRITING"
    assert found == ["DELETED"] * 2
    assert steps.file_facts(other)[0] == "WRITING"


def test_a_zombie_cannot_seal_the_file_that_cleanup_took(steps: Steps) -> None:
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    steps.begin(batch)
    file = steps.intend(batch)
    steps.ack(batch, 1, 0, 1)
    steps.begin(steps.ref(epoch, 1))
    steps.let_writes_end()
    steps.clean()
    with pytest.raises(FencedError, match="the physical file is DELETED"):
        steps.run(lambda c: seal_files(c, [file]))


def test_cleanup_takes_initial_state_a_day_after_it_was_written_once_a_batch_is_confirmed(
    steps: Steps,
) -> None:
    epoch = steps.register()
    steps.begin(steps.ref(epoch, 0))
    first, later = (steps.intend(steps.ref(epoch, 0), Scope.SHARED) for _ in range(2))
    steps.sql(
        "UPDATE cairn.physical_files SET created_at = created_at - INTERVAL '25 hours'"
        " WHERE file_id = CAST(:file AS uuid)",
        file=first.file_id,
    )
    steps.let_writes_end()
    steps.clean()
    assert steps.file_facts(first)[0] == "WRITING", "the first batch may run again"
    steps.ack(steps.ref(epoch, 0), 1, 0, 1)
    steps.begin(steps.ref(epoch, 1))
    steps.clean()
    assert [steps.file_facts(file)[0] for file in (first, later)] == ["DELETED", "WRITING"]
