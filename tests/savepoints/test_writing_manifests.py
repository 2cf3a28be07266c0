"""Manifests of checkpoints: what they hold, how long they live, and writers that were killed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cairn.catalog.catalog import Catalog
from cairn.catalog.job.fencing import lock_job
from cairn.catalog.savepoints.manifest_rows import (
    describe_checkpoint,
    intend_manifest,
    seal_manifest,
)
from cairn.catalog.savepoints.pins import open_pins, pin_checkpoint, remove_pins
from cairn.errors import CorruptSegmentError, FencedError, RefusedError, StorageError
from cairn.layout import manifest_file
from cairn.maintenance.cleanup import cleanup_job
from cairn.manifest import Manifest, encode
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.task.periodic_manifest import write_manifest_if_due
from cairn.savepoints import write_manifest as writing
from cairn.savepoints.manifest_files import read_manifest
from cairn.savepoints.write_manifest import write_manifest
from cairn.segments.snapshot import snapshot
from cairn.storage import store as stores
from cairn.storage.posix import PosixStore
from metastore.enums import PinKind
from tests.cli.stateful_job import COUNT, STATES, StatefulJob, put_count
from tests.runtime.tasks import EVERYTHING, QUERY, remembered
from tests.savepoints.jobs import EXECUTOR, Query, intend


def from_manifest(query: Query, checkpoint_id: int) -> Any:
    """Returns a checkpoint's state from its manifest and storage alone."""
    origin = query.origin(checkpoint_id)
    handles = [handle for _, handle in origin.manifest.handles()]
    return snapshot(origin.store, handles, EVERYTHING, job="words")


def described(query: Query, checkpoint_id: int) -> bytes:
    """Returns the manifest as it would be written now."""

    def work(connection: Any) -> Manifest:
        return describe_checkpoint(connection, query.plan.job_id, checkpoint_id)

    return encode(query.do(work))


def manifests(query: Query) -> list[int]:
    """Returns the checkpoints whose manifest is in storage."""
    return sorted(int(path.parent.name[4:]) for path in query.root.glob("chk-*/_metadata"))


def statuses(query: Query) -> list[tuple[str, int]]:
    """Returns status and live segments of each manifest's file."""
    rows = query.sql(
        "SELECT status, live_segments FROM cairn.physical_files"
        " WHERE job_id = :job AND path LIKE '%/_metadata' ORDER BY path"
    )
    return [(str(status), int(segments)) for status, segments in rows]


def pins(query: Query) -> list[tuple[Any, ...]]:
    """Returns checkpoint and manifest of each open pin."""
    return query.sql(
        "SELECT checkpoint_id, manifest FROM cairn.v_pins"
        " WHERE job_id = :job AND removed_at IS NULL ORDER BY 1"
    )


def write(query: Query, checkpoint_id: int) -> None:
    write_manifest(query.catalog, query.store, checkpoint_id, run=query.plan.ref)


def test_a_savepoints_manifest_holds_the_state_without_the_metastore(query: Query) -> None:
    for batch_id in range(4):
        query.batch(batch_id, materializes=[0] if batch_id == 2 else [])
    pinned = query.savepoint()
    assert (pinned.checkpoint_id, pinned.batch_id, pinned.query_id) == (3, 2, QUERY)
    assert from_manifest(query, 3) == remembered(3) == query.state(3)


def test_a_manifest_is_the_same_whatever_has_happened_since(query: Query) -> None:
    for batch_id in range(3):
        query.batch(batch_id)
    query.savepoint(2)
    first = described(query, 2)
    assert first == (query.root / "chk-2" / "_metadata").read_bytes()
    for batch_id in range(3, 7):
        query.batch(batch_id, materializes=[0, 1])
    query.start(parallelism=3)
    query.batch(7)
    cleanup_job(query.catalog, query.job)
    assert described(query, 2) == first
    assert from_manifest(query, 2) == remembered(2)


def test_a_manifest_is_no_state_of_any_checkpoint(query: Query) -> None:
    for batch_id in range(3):
        query.batch(batch_id)
    TaskManager(query.plan, EXECUTOR).begin(query.plan.batch(QUERY, 3))
    assert query.savepoint().checkpoint_id == 3
    shutil.rmtree(query.local_dir)
    query.start(parallelism=3)
    last = query.batch(3)  # from checkpoint 3, by its segments
    assert query.state(last) == remembered(4)


def test_a_manifest_stays_as_long_as_its_checkpoint(query: Query) -> None:
    for batch_id in range(6):
        query.batch(batch_id, materializes=[0, 1])
        if batch_id in (2, 3):
            query.savepoint()
    cleanup_job(query.catalog, query.job)
    assert manifests(query) == [2, 3]
    found = query.do(lambda c: open_pins(c, query.job, 2, None))
    query.do(lambda c: remove_pins(c, query.job, [row["pin_id"] for row in found]))
    cleanup_job(query.catalog, query.job)
    assert manifests(query) == [3]
    assert statuses(query) == [("DELETED", 0), ("SEALED", 1)]
    assert from_manifest(query, 3) == remembered(3)


def test_a_manifest_that_is_there_is_left_alone(query: Query) -> None:
    for batch_id in range(2):
        query.batch(batch_id)
    query.savepoint(name="one")
    before = query.sql("SELECT * FROM cairn.segments ORDER BY segment_id")
    query.savepoint(name="two")
    write(query, 1)
    assert query.sql("SELECT * FROM cairn.segments ORDER BY segment_id") == before
    assert statuses(query) == [("SEALED", 1)]


@pytest.mark.parametrize("killed_after", ["intent", "put", "seal"])
def test_a_writer_that_was_killed_is_finished_by_the_next(
    query: Query, killed_after: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="cairn.savepoints")
    for batch_id in range(2):
        query.batch(batch_id)
    intended = query.do(lambda c: intend(c, query.plan.job_id, 1))
    if killed_after != "intent":
        query.store.put(intended.path, [encode(intended.manifest)])
    if killed_after == "seal":
        query.do(lambda c: seal_manifest(c, intended, encode(intended.manifest)))
    query.savepoint()
    assert statuses(query) == [("SEALED", 1)]
    query.do(lambda c: seal_manifest(c, intended, encode(intended.manifest)))
    assert statuses(query) == [("SEALED", 1)], "a late first writer changes nothing"
    logged = {
        "intent": ["manifest written"],
        "put": ["manifest of an earlier try taken as written", "manifest written"],
        "seal": [],
    }
    assert [record.message for record in caplog.records] == logged[killed_after]
    assert from_manifest(query, 1) == remembered(1)


def test_an_object_written_before_a_schema_grew_is_taken_as_the_manifest(
    metastore_url: str, tmp_storage: str
) -> None:
    job = StatefulJob(metastore_url, tmp_storage).register()
    for n in range(2):
        job.batch(put_count(1, "eu", n))
    intended, run = job._run(lambda c: intend(c, job.job_id, 1)), job.run_ref
    earlier = encode(intended.manifest)
    job_store = PosixStore(Path(tmp_storage.removeprefix("file://")))
    job_store.put(intended.path, [earlier])
    wider = {**COUNT, "fields": [*COUNT["fields"], {**COUNT["fields"][0], "name": "m"}]}
    job.register([replace(STATES[0], value_schema=wider), *STATES[1:]])
    write_manifest(Catalog(metastore_url), job_store, 1, run=run)
    found = read_manifest(f"{tmp_storage}/{intended.path}").manifest
    assert found == intended.manifest
    segment = job._run(lambda c: intend(c, job.job_id, 1))
    assert segment.is_written


def test_another_object_in_the_manifests_place_is_refused_and_kept(query: Query) -> None:
    for batch_id in range(3):
        query.batch(batch_id)
    other = query.do(lambda c: intend(c, query.plan.job_id, 2)).manifest
    query.store.put(manifest_file(query.plan.job_id, 1), [encode(other)])
    with pytest.raises(RefusedError, match=r"of another checkpoint: two metastores.*checkpoint 1"):
        write(query, 1)
    assert (query.root / "chk-1" / "_metadata").read_bytes() == encode(other)
    assert ("WRITING", 0) in statuses(query)


def test_a_write_that_a_newer_run_has_given_up_is_refused(query: Query) -> None:
    for batch_id in range(2):
        query.batch(batch_id)
    intended = query.do(lambda c: intend(c, query.plan.job_id, 1))
    query.start()
    query.batch(2)
    query.age_intents()
    cleanup_job(query.catalog, query.job)
    with pytest.raises(FencedError, match=r"CONDEMNED|DELETED"):
        query.do(lambda c: seal_manifest(c, intended, b"x"))
    with pytest.raises(RefusedError, match="its path is never used again"):
        query.savepoint(1)
    assert pins(query) == [], "the pin goes with the refusal"
    query.do(
        lambda c: pin_checkpoint(c, query.job, 1, pin_id=uuid4(), kind=PinKind.SAVEPOINT, name=None)
    )
    with pytest.raises(RefusedError, match="its path is never used again"):
        query.savepoint(1)
    assert pins(query) == [(1, None)], "one of before stays"
    assert query.savepoint().checkpoint_id == 2


def test_a_write_that_is_taken_up_again_is_not_given_up_meanwhile(query: Query) -> None:
    for batch_id in range(2):
        query.batch(batch_id)
    query.do(lambda c: intend(c, query.plan.job_id, 1))
    query.age_intents()
    again = query.do(lambda c: intend(c, query.plan.job_id, 1))
    query.start()
    query.batch(2)
    cleanup_job(query.catalog, query.job)
    query.store.put(again.path, [encode(again.manifest)])
    query.do(lambda c: seal_manifest(c, again, encode(again.manifest)))
    assert statuses(query) == [("SEALED", 1)]


def test_a_manifest_is_read_while_somebody_else_has_the_jobs_lock(query: Query) -> None:
    """To read the segments of a large checkpoint takes seconds."""
    for batch_id in range(2):
        query.batch(batch_id)
    with query.catalog.begin() as connection:
        lock_job(connection, query.plan.job_id, exclusive=True)
        assert described(query, 1)


def test_the_newest_checkpoint_is_kept_from_the_moment_that_a_savepoint_chooses_it(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch_id in range(4):
        query.batch(batch_id)

    def read_late(*asked: Any) -> Manifest:
        for batch_id in (4, 5):
            query.batch(batch_id)
        cleanup_job(query.catalog, query.job)
        return describe_checkpoint(*asked)

    monkeypatch.setattr(writing, "describe_checkpoint", read_late)
    assert query.savepoint().checkpoint_id == 3
    assert from_manifest(query, 3) == remembered(3)
    left = query.sql("SELECT checkpoint_id FROM cairn.checkpoints WHERE status = 'CONFIRMED'")
    assert sorted(left) == [(3,), (4,), (5,)], "the cleanup passed, and would have subsumed it"


def test_a_savepoint_that_was_killed_after_its_pin_is_finished_by_its_id(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch_id in range(2):
        query.batch(batch_id)

    def killed(*_: object) -> Manifest:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(writing, "describe_checkpoint", killed)
        for _ in range(2):
            with pytest.raises(InterruptedError):
                query.savepoint(name="audit")
    assert pins(query) == [(1, None)]
    for batch_id in (2, 3):
        query.batch(batch_id)
    cleanup_job(query.catalog, query.job)
    assert not query.savepoint(1, name="audit").is_new
    assert pins(query) == [(1, query.manifest_url(1))]
    assert from_manifest(query, 1) == remembered(1)


def test_a_checkpoint_that_was_subsumed_after_it_was_read_gets_no_manifest(query: Query) -> None:
    for batch_id in range(2):
        query.batch(batch_id)
    manifest = query.do(lambda c: describe_checkpoint(c, query.plan.job_id, 1))
    query.sql(
        "SET LOCAL session_replication_role = replica;"
        "UPDATE cairn.checkpoints SET status = 'SUBSUMED' WHERE checkpoint_id = 1"
    )
    with pytest.raises(RefusedError, match=r"only a CONFIRMED checkpoint.*is SUBSUMED"):
        query.do(lambda c: intend_manifest(c, manifest))
    assert statuses(query) == []


def test_a_job_that_was_dropped_after_its_checkpoint_was_read_gets_no_manifest(
    query: Query,
) -> None:
    for batch_id in range(2):
        query.batch(batch_id)
    manifest = query.do(lambda c: describe_checkpoint(c, query.plan.job_id, 1))
    query.sql(
        "SET LOCAL session_replication_role = replica;"
        "UPDATE cairn.jobs SET dropped_at = now(), former_name = name, name = job_id,"
        " current_epoch = current_epoch + 1"
    )
    with pytest.raises(RefusedError, match=r"the job was dropped meanwhile"):
        query.do(lambda c: intend_manifest(c, manifest))


def test_a_manifest_that_was_read_in_a_lost_history_is_not_that_of_the_id_given_again(
    query: Query,
) -> None:
    for batch_id in range(2):
        query.batch(batch_id)
    manifest = query.do(lambda c: describe_checkpoint(c, query.plan.job_id, 1))
    for lost in (
        # Another run has the epoch, the epoch is not given yet, the run has done the batch again.
        replace(manifest, run_id=str(uuid4())),
        replace(manifest, epoch=manifest.epoch + 1, run_id=str(uuid4())),
        replace(manifest, processing_ms=manifest.processing_ms - 1),
    ):
        with pytest.raises(RefusedError, match=r"is another one than was read"):
            query.do(partial(intend_manifest, manifest=lost))
    assert statuses(query) == []


def test_a_writer_that_was_held_up_since_its_intent_sends_nothing(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch_id in range(2):
        query.batch(batch_id)
    with monkeypatch.context() as patch:
        patch.setattr(stores, "LONGEST_HOLD_S", -1)
        with pytest.raises(StorageError, match=r"held up for 0 s .* nothing was sent"):
            query.savepoint()
    assert manifests(query) == []
    query.savepoint()
    assert manifests(query) == [1]


def test_a_run_that_was_replaced_writes_no_manifest(query: Query) -> None:
    for batch_id in range(2):
        query.batch(batch_id)
    older = query.plan
    query.start()
    query.batch(2)
    with pytest.raises(FencedError, match="run 1 was replaced by run 2"):
        write_manifest(query.catalog, query.store, 1, run=older.ref)
    assert manifests(query) == []


def test_a_checkpoint_that_is_not_confirmed_has_no_manifest(query: Query) -> None:
    query.batch(0)
    with pytest.raises(RefusedError, match=r"only a CONFIRMED checkpoint .* is COMPLETED"):
        write(query, 1)
    with pytest.raises(RefusedError, match="does not exist"):
        write(query, 7)


def test_a_manifest_of_a_checkpoint_with_bytes_but_another_path_is_refused(query: Query) -> None:
    for batch_id in range(2):
        query.batch(batch_id)
    query.savepoint()
    (query.root / "chk-1").rename(query.root / "chk-5")
    with pytest.raises(RefusedError, match=r"is of checkpoint 1 .* somebody moved it"):
        query.origin(5)
    (query.root / "chk-5" / "_metadata").write_bytes(b"cairn-manifest 1 00\n{}")
    with pytest.raises(CorruptSegmentError, match="chk-5/_metadata"):
        query.origin(5)


@pytest.mark.parametrize(("interval", "written"), [(1, [1, 2, 3, 4, 5, 6]), (3, [3, 6]), (7, [])])
def test_every_nth_checkpoint_gets_a_manifest_once_it_is_confirmed(
    query: Query, interval: int, written: list[int]
) -> None:
    query.interval = interval
    query.start()
    for batch_id in range(7):
        query.batch(batch_id)
    assert manifests(query) == written
    for checkpoint_id in written:
        assert from_manifest(query, checkpoint_id) == remembered(checkpoint_id)


def test_without_an_interval_there_are_no_manifests(query: Query) -> None:
    for batch_id in range(3):
        query.batch(batch_id)
    assert manifests(query) == []
    assert statuses(query) == []


class BrokenStore(PosixStore):
    """Manifests cannot be written; counts the tries."""

    tries = 0

    def put(self, path: str, chunks: Sequence[bytes | memoryview]) -> None:
        self.tries += 1
        raise StorageError("disk full")


def test_a_manifest_that_fails_is_logged_and_the_next_batchs_is_tried(
    query: Query, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query.interval = 2
    query.start()
    broken = BrokenStore(tmp_path / "storage")
    for batch_id in range(4):
        query.interval = 0
        query.batch(batch_id)
        manager = TaskManager(query.plan, EXECUTOR)
        start = manager.begin(query.plan.batch(QUERY, batch_id))
        write_manifest_if_due(manager, broken, start)
    assert broken.tries == 2, "of checkpoints 2 and 3"
    assert "no manifest of checkpoint 3: disk full" in caplog.text
    query.interval = 2
    query.batch(4)
    assert manifests(query) == [4]


def test_the_view_has_a_savepoints_url(query: Query) -> None:
    for batch_id in range(2):
        query.batch(batch_id)
    query.savepoint(name="audit")
    [(url,)] = query.sql("SELECT manifest FROM cairn.v_pins WHERE job_id = :job")
    assert read_manifest(url).manifest.checkpoint_id == 1
    [(because,)] = query.sql(
        "SELECT kept_because FROM cairn.v_files WHERE job_id = :job AND path LIKE '%_metadata'"
    )
    assert because == "needed by checkpoint 1"
