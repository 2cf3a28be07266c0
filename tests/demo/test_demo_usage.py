"""The demo's report says what is in storage, and is red where nothing was cleaned up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cairn.storage import open_store
from demo.report import DemoReport
from demo.usage import StorageDiffersError, Usage, usage
from tests.metastore.steps import SIZE_BYTES, Steps


@pytest.fixture
def steps(metastore_url: str, tmp_path: Path) -> Steps:
    """A job with one whole checkpoint, its file, and the file of a batch that was killed."""
    steps = Steps(metastore_url, tmp_path.as_uri())
    epoch = steps.register()
    batch = steps.ref(epoch, 0)
    _, file = steps.ack(batch, steps.begin(batch).checkpoint_id, 0, 1)
    _put(steps, steps.path(file), 2 * SIZE_BYTES)
    killed = steps.ref(epoch, 1)
    steps.begin(killed)
    _put(steps, steps.path(steps.intend(killed)), 7)
    return steps


def _put(steps: Steps, path: str, size_bytes: int) -> None:
    open_store(steps.storage).put(path, [b"x" * size_bytes])


def _usage(steps: Steps) -> Usage:
    with steps.catalog.begin() as connection:
        return usage(connection, steps.name)


def test_a_listing_is_what_the_metastore_says_and_what_was_never_committed(steps: Steps) -> None:
    assert _usage(steps) == Usage(
        checkpoints=1,
        files=1,
        size_bytes=2 * SIZE_BYTES,
        listed_files=2,
        listed_bytes=2 * SIZE_BYTES + 7,
        uncommitted_files=1,
        uncommitted_bytes=7,
    )


def test_an_object_that_is_too_short_is_found(steps: Steps) -> None:
    [file] = [
        path
        for path in Path(steps.storage.removeprefix("file://")).rglob("*.seg")
        if path.stat().st_size > 7
    ]
    file.write_bytes(b"x")

    with pytest.raises(StorageDiffersError, match="200 bytes by the metastore and 1 in storage"):
        _usage(steps)


def test_a_missing_object_is_found(steps: Steps) -> None:
    for file in Path(steps.storage.removeprefix("file://")).rglob("*.seg"):
        file.unlink()

    with pytest.raises(StorageDiffersError, match="None in storage"):
        _usage(steps)


def test_an_object_that_the_metastore_does_not_know_is_found(steps: Steps) -> None:
    _put(steps, f"{steps.job_id}/shared/stranger.seg", 1)

    with pytest.raises(StorageDiffersError, match=r"does not know .*stranger"):
        _usage(steps)


BEFORE = Usage(
    checkpoints=30,
    files=40,
    size_bytes=4000,
    listed_files=40,
    listed_bytes=4000,
    uncommitted_files=0,
    uncommitted_bytes=0,
)
AFTER = replace(BEFORE, checkpoints=4, files=10, size_bytes=1000)
REPORT = DemoReport(
    batches=33,
    words=1,
    windows=1,
    keys=1,
    mismatches=0,
    killed_in_checkpoint=13,
    restore_after_kill_ms=1,
    physical_files_created=40,
    segments_created=100,
    native_state_files_4_partitions=1,
    native_state_files_200_partitions=1,
    native_state_files_formula="",
    before_cleanup=BEFORE,
    cleanup={"subsumed_checkpoints": 26, "deleted_files": 30, "freed_bytes": 3000},
    after_cleanup=AFTER,
)


def test_a_demo_is_right_when_its_numbers_agree() -> None:
    assert REPORT.problems() == []


@pytest.mark.parametrize("name", ["subsumed_checkpoints", "deleted_files", "freed_bytes"])
def test_a_cleanup_with_nothing_to_do_is_a_problem(name: str) -> None:
    cleanup = {"subsumed_checkpoints": 0, "deleted_files": 0, "freed_bytes": 0}
    report = replace(REPORT, after_cleanup=BEFORE, cleanup=cleanup)

    assert f"the cleanup had nothing to do: {name} is 0" in report.problems()


def test_a_cleanup_that_claims_too_much_is_a_problem() -> None:
    report = replace(REPORT, cleanup={**REPORT.cleanup, "freed_bytes": 3001})

    assert report.problems() == ["freed_bytes is 3001 by the DAG run, 3000 in fact"]


def test_a_wrong_count_is_a_problem() -> None:
    assert replace(REPORT, mismatches=2).problems() == ["2 counts are wrong"]
