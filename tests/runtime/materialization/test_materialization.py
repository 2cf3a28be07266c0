"""What a materialization writes and releases, how often it is tried, and when it is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cairn.errors import RefusedError, StorageError
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.materialization import schedule
from cairn.runtime.materialization.progress import progress_of
from tests.runtime.materialization.stream import Stream, at, carry_out_here
from tests.runtime.tasks import BIG, read_back, remember_big, remembered


@pytest.fixture
def stream(
    metastore_url: str, tmp_storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Stream:
    """A query that is materialized in this process, where nothing waits for a core."""
    monkeypatch.setattr(schedule, "start_unless_there", carry_out_here)
    return Stream(metastore_url, tmp_storage, str(tmp_path / "local"))


def test_the_first_materialization_is_full_and_the_next_holds_what_has_changed(
    stream: Stream,
) -> None:
    stream.run(1, remember_big)
    stream.run(2)
    stream.materialize()
    stream.run(2)
    assert stream.kinds(5) == ["keyed_full", "changelog", "changelog", "changelog"]
    stream.materialize(at(10**6))
    stream.run(1)
    base, increment, *changelog = stream.segments(6)
    assert stream.kinds(6) == ["keyed_full", "keyed_increment", "changelog", "changelog"]
    assert increment.as_of_checkpoint == 4, "of the local state, which is that of the parent"
    assert increment.size_bytes < base.size_bytes / 4
    assert [segment.as_of_checkpoint for segment in changelog] == [5, 6]
    assert read_back(stream.plan, 6) == remembered(6) | BIG


def test_what_changes_more_than_a_quarter_of_the_state_is_materialized_whole(
    stream: Stream,
) -> None:
    stream.run(3)
    stream.materialize()
    stream.run(2)
    stream.materialize(at(10**6))
    stream.run(1)
    assert stream.kinds(6) == ["keyed_full", "changelog", "changelog"]
    assert stream.segments(6)[0].as_of_checkpoint == 4
    assert read_back(stream.plan, 6) == remembered(6)


def test_nothing_is_written_where_nothing_has_changed_since_the_base(stream: Stream) -> None:
    stream.run(2)
    stream.materialize()
    files = "SELECT count(*) FROM cairn.physical_files WHERE job_id = :job"
    before = stream.sql(files)
    stream.materialize(at(10**6))
    assert stream.sql(files) == before
    assert progress_of(stream.manager, 0).done_ms == at(10**6).now_ms


@contextmanager
def without_changelog(stream: Stream) -> Iterator[None]:
    """Moves the newest changelog away, of which no batch here reads the object."""
    newest = stream.segments(stream.batches)[-1]
    file = Path(stream.plan.storage.removeprefix("file://")) / newest.path
    away = file.rename(file.with_suffix(".away"))
    yield
    away.rename(file)


def test_three_failures_in_a_row_fail_the_task_and_a_restart_counts_anew(
    stream: Stream,
) -> None:
    stream.run(1, remember_big)
    stream.run(1)
    stream.materialize()
    stream.run(1)
    with without_changelog(stream):
        stream.run(1)
        for failures in range(1, 4):
            stream.materialize(at(10**6))
            assert progress_of(stream.manager, 0).failures == failures
        with pytest.raises(
            StorageError,
            match=r"subtask 0 could not be materialized \(failures in a row: 3\), so the changelog"
            r" grows\. The last time: .* has no such object",
        ):
            stream.order(at(10**6))
    stream.materialize(at(10**6))
    stream.run(1)
    assert "keyed_increment" in stream.kinds(5)
    assert read_back(stream.plan, 5) == remembered(5) | BIG


def test_a_failure_that_trying_again_cannot_mend_fails_every_next_task_at_once(
    stream: Stream,
) -> None:
    stream.run(2)
    shared = Path(stream.plan.storage.removeprefix("file://")) / stream.plan.job_id / "shared"
    shared.write_text("a file where a directory has to be")
    stream.materialize()
    tried = stream.sql("SELECT 1 FROM cairn.materializations")
    for _ in range(2):
        with pytest.raises(
            RefusedError,
            match=r"subtask 0 could not be materialized \(failures in a row: 1\), so the changelog"
            r" grows\. Trying again cannot help: .* a part of the path is a file",
        ):
            stream.order()
    assert stream.sql("SELECT 1 FROM cairn.materializations") == tried, "it is not tried again"
    shared.unlink()
    stream.restart()
    stream.run(1)
    stream.materialize()
    stream.run(1)
    assert stream.kinds(4)[0] == "keyed_full"
    assert read_back(stream.plan, 4) == remembered(4)


def test_the_changelog_is_released_by_the_materialization(stream: Stream) -> None:
    stream.run(4)
    stream.materialize()
    stream.run(4)
    cleanup_job(stream.plan.catalog, stream.plan.job)
    live = stream.sql("SELECT kind FROM cairn.segments WHERE job_id = :job AND status = 'LIVE'")
    assert sorted(map(str, live)) == ["changelog"] * 5 + ["keyed_full"]
    assert read_back(stream.plan, 8) == remembered(8)
