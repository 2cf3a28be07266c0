"""The options of file merging, on real files: each test fails if its option is ignored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization import write as materialize
from tests.runtime.file_rows import files, rows
from tests.runtime.merging_stream import SUBTASKS, CountingStore, Stream, subtasks_by_file
from tests.runtime.sent import watch
from tests.runtime.tasks import on_host


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    return Stream(metastore_url, tmp_storage, str(tmp_path / "local"))


def test_with_the_defaults_a_commit_is_an_intent_a_put_and_an_ack(stream: Stream) -> None:
    stream.restart()
    stream.batch()
    store = CountingStore(stream.storage)
    sent: list[tuple[object, ...]] = []
    waiting = [task.steps() for task in stream.tasks(store=store)]
    for steps in waiting:
        while next(steps) != "asked":
            pass
    end = watch(
        lambda _, text, is_whole: sent.append((*re.findall(r"cairn\.\w+(?=\()", text), is_whole))
    )
    try:
        list(waiting[0])
    finally:
        end()
    assert store.requests == ["put"]
    assert sent == [
        ("cairn.intend_files", True),
        ("cairn.acknowledge", True),
    ], "each is a transaction"


def test_merging_puts_an_executors_segments_in_one_file_of_its_directory(stream: Stream) -> None:
    plan = stream.restart()
    stream.batch()
    [(path, _, live)] = files(plan)
    assert re.fullmatch(
        rf"taskmanager-owned/{TaskManager(plan, 'executor').tm_id}/[\w-]+\.seg", path
    )
    assert live == SUBTASKS
    stream.assert_whole()


def test_without_merging_every_segment_is_a_file_with_its_checkpoint_in_the_name(
    stream: Stream,
) -> None:
    plan = stream.restart(enabled=False)
    stream.batch()
    stream.batch()
    names = [path for path, _, _ in files(plan)]
    assert {name.rpartition("/")[0] for name in names} == {"exclusive"}
    assert sorted(tuple(name.split("/")[1].split("-")[:2]) for name in names) == [
        (checkpoint, str(subtask)) for checkpoint in "12" for subtask in range(SUBTASKS)
    ]
    assert {live for _, _, live in files(plan)} == {1}
    assert len(rows(plan, "SELECT DISTINCT acked_at FROM cairn.subtask_acks")) == 2
    stream.assert_whole()


def test_a_new_file_starts_once_one_has_its_maximum_size(stream: Stream) -> None:
    stream.restart()
    stream.batch()
    [(_, whole_bytes, _)] = files(stream.plan)
    segment_bytes = whole_bytes // SUBTASKS
    stream.plan = replace(
        stream.plan,
        settings=replace(stream.plan.settings, max_file_bytes=segment_bytes + 1),
    )
    stream.batch()
    assert [live for _, _, live in files(stream.plan)] == [SUBTASKS, 2, 2]
    assert len(rows(stream.plan, "SELECT DISTINCT acked_at FROM cairn.subtask_acks")) == 2
    stream.assert_whole()


@pytest.mark.parametrize(("limit", "expected"), [(1, 4), (2, 2), (3, 2), (4, 1), (0, 1)])
def test_so_many_subtasks_share_a_file(stream: Stream, limit: int, expected: int) -> None:
    stream.restart(max_subtasks_per_file=limit)
    stream.batch()
    shared = subtasks_by_file(stream.plan)
    assert len(shared) == expected
    assert max(map(len, shared)) == (limit or SUBTASKS)


def test_bases_share_a_file_up_to_its_size_within_their_subtask(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "CHUNK_BYTES", 1)
    plan = stream.restart(parallelism=2)
    stream.batch()
    stream.batch(materializes=True)
    bases = [found for found in files(plan) if found[0].startswith("shared/")]
    assert [live for _, _, live in bases] == [4, 4], "one segment a key group"
    assert sorted(path.split("/")[1] for path, _, _ in bases) == ["subtask-0-2", "subtask-1-2"]
    small = replace(plan.settings, max_file_bytes=bases[0][1] // 2)
    stream.plan = replace(plan, settings=small)
    stream.batch(materializes=True)
    newer = [found for found in files(plan) if found[0].startswith("shared/")][2:]
    assert [live for _, _, live in newer] == [2] * 4
    stream.batch()
    stream.assert_whole()


def test_without_merging_each_base_is_a_file_with_its_checkpoint_in_the_name(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "CHUNK_BYTES", 1)
    plan = stream.restart(parallelism=2, enabled=False)
    stream.batch()
    before = len(files(plan))
    stream.batch(materializes=True)
    bases = rows(
        plan,
        "SELECT path FROM cairn.physical_files JOIN cairn.segments USING (file_id)"
        " WHERE kind = 'keyed_full' ORDER BY path",
    )
    assert before == 2
    assert len(bases) == 8
    assert all(re.search(r"/exclusive/1-[01]-[\w-]+\.seg$", path) for path in bases)
    stream.batch()
    stream.assert_whole()


MODES: Sequence[dict[str, object]] = (
    {"enabled": True},
    {"enabled": False},
    {"across_checkpoint_boundary": True},
)


@pytest.mark.parametrize("host_is_lost", [True, False])
def test_merging_is_switched_over_restarts_and_other_parallelisms(
    stream: Stream, tmp_path: Path, host_is_lost: bool
) -> None:
    """On, off, across, on …: each run restores what the others wrote, and mixes its own in."""
    for run, parallelism in enumerate((3, 3, 2, 4, 1)):
        plan = stream.restart(parallelism=parallelism, **MODES[run % 3])
        if host_is_lost:
            stream.plan = on_host(plan, str(tmp_path / f"host-{run}"))
        for batch in range(3):
            stream.batch(materializes=batch == 1 and run % 2 == 0, full_from_share=None)
            stream.assert_whole()
        cleanup_job(stream.plan.catalog, plan.job)
        stream.assert_whole()


def test_a_checkpoint_holds_merged_and_single_files_at_once(stream: Stream) -> None:
    stream.restart()
    stream.batch()
    stream.restart(enabled=False)
    stream.batch()
    stream.restart()
    stream.batch()
    newest = rows(stream.plan, "SELECT max(checkpoint_id) FROM cairn.checkpoints")[0]
    inside = rows(
        stream.plan,
        "SELECT DISTINCT split_part(path, '/', 2) FROM cairn.physical_files"
        " JOIN cairn.segments s USING (file_id) WHERE s.status = 'LIVE'"
        " AND first_checkpoint <= :newest AND released_checkpoint IS NULL ORDER BY 1",
        newest=newest,
    )
    assert inside == ["exclusive", "taskmanager-owned"]
    stream.assert_whole()
