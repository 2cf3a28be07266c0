"""A new job from a manifest alone: copied, adopted once, and refused where it does not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cairn.catalog.job.begin import begin_batch
from cairn.catalog.job.runs import register_run
from cairn.errors import (
    BadInputError,
    CairnError,
    CorruptSegmentError,
    FencedError,
    RefusedError,
    StorageError,
)
from cairn.maintenance.cleanup import cleanup_job
from cairn.savepoints.manifest_files import Origin, check_manifest_url
from cairn.savepoints.start_from_manifest import find_origin, restore
from cairn.storage import ObjectStore
from cairn.storage.posix import PosixStore
from tests.cli.stateful_job import KEY, STATES, StatefulJob, put_count
from tests.runtime.tasks import QUERY, remember, remembered
from tests.savepoints.jobs import Query


@pytest.fixture
def source(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Query:
    """A query with bases and changelog; checkpoint 5, of batch 4, is a savepoint."""
    query = Query(metastore_url, tmp_storage, str(tmp_path / "local")).start()
    for batch_id in range(6):
        query.batch(batch_id, materializes=[batch_id % 2] if batch_id > 1 else [])
    assert query.savepoint().checkpoint_id == 5
    return query


@pytest.fixture
def target(other_url: str, tmp_path: Path) -> Query:
    """A query of another job, with a metastore and a storage of its own, not started."""
    (tmp_path / "target").mkdir()
    storage = (tmp_path / "target").as_uri()
    return Query(other_url, storage, str(tmp_path / "local-2"), job="again")


def build(query: Query, url: str, parallelism: int = 3, **changes: Any) -> bool:
    """Does what building the plan does; tells whether the job was restored."""
    origin = find_origin(query.catalog, query.job, url)
    query.start(parallelism, origin=origin and origin.manifest, **changes)
    if origin is None or query.run.has_state:
        return False
    copy(query, origin)
    return True


def copy(query: Query, origin: Origin, store: ObjectStore | None = None) -> None:
    restore(query.catalog, origin, store or query.store, run=query.plan.ref)


def url_of(source: Query) -> str:
    return source.manifest_url(5)


def go_on(query: Query, batches: int) -> int:
    """Runs batches that do what the source's next would have done; returns the last checkpoint."""
    for batch_id in range(batches):
        last = query.batch(
            batch_id,
            materializes=[batch_id % query.plan.parallelism],
            write=remember(5 + batch_id),
        )
    return last


@pytest.mark.parametrize("parallelism", [1, 2, 3, 8])
def test_a_new_job_continues_from_the_manifest_at_any_parallelism_without_the_source(
    source: Query, target: Query, parallelism: int
) -> None:
    assert build(target, url_of(source), parallelism)
    shutil.rmtree(source.root)
    assert target.state(5) == remembered(5)
    last = go_on(target, 4)
    assert last == 9, "ids go on after the adopted checkpoint's"
    assert target.state(9) == remembered(9)
    cleanup_job(target.catalog, target.job)
    assert target.state(9) == remembered(9)


def test_the_source_stays_as_it_was(source: Query, target: Query) -> None:
    before = {path: path.read_bytes() for path in source.root.rglob("*") if path.is_file()}
    rows = source.sql("SELECT * FROM cairn.segments ORDER BY segment_id")
    build(target, url_of(source))
    go_on(target, 3)
    cleanup_job(target.catalog, target.job)
    assert {p: p.read_bytes() for p in source.root.rglob("*") if p.is_file()} == before
    assert source.sql("SELECT * FROM cairn.segments ORDER BY segment_id") == rows


def test_a_job_is_restored_into_the_metastore_and_storage_of_its_source(source: Query) -> None:
    again = Query(source.url, source.storage, source.local_dir, job="again")
    build(again, url_of(source))
    source.batch(6)
    go_on(again, 2)
    assert again.state(7) == remembered(7)
    assert source.state(7) == remembered(7)


def test_building_the_plan_again_restores_nothing_again(source: Query, target: Query) -> None:
    assert build(target, url_of(source))
    before = target.sql("SELECT * FROM cairn.segments ORDER BY segment_id")
    shutil.rmtree(source.root)
    assert not build(target, url_of(source)), "the manifest is not even read"
    assert target.sql("SELECT * FROM cairn.segments ORDER BY segment_id") == before
    go_on(target, 2)
    assert not build(target, url_of(source), parallelism=2)
    assert target.state(7) == remembered(7)


def test_two_plans_built_at_once_restore_once(source: Query, target: Query) -> None:
    origin = source.origin(5)
    one = replace_query(target).start(3, origin=origin.manifest)
    other = replace_query(target).start(2, origin=origin.manifest)
    copy(other, origin)
    copy(one, origin)
    [(checkpoints,)] = one.sql("SELECT count(*) FROM cairn.checkpoints WHERE job_id = :job")
    assert checkpoints == 1
    assert one.state(5) == remembered(5)
    go_on(other, 2)
    other.age_intents()
    cleanup_job(other.catalog, other.job)
    stored = {p for p in other.root.rglob("*") if p.is_file() and p.parent.name != "owner"}
    known = {
        other.root.parent / path
        for (path,) in other.sql("SELECT path FROM cairn.physical_files WHERE status = 'SEALED'")
    }
    assert stored == known, "the copies of the plan that lost are gone"


class Killed(BaseException):
    """The end of a process, as far as its own code can tell."""


class DyingStore(PosixStore):
    """A store whose writer dies before or after its first write."""

    def __init__(self, storage: str, when: str) -> None:
        super().__init__(Path(storage.removeprefix("file://")))
        self.when = when

    def put(self, path: str, chunks: Sequence[bytes | memoryview]) -> None:
        if self.when == "after":
            super().put(path, chunks)
        raise Killed


@pytest.mark.parametrize("killed", ["before it reads", "before put", "after put"])
def test_a_restore_that_was_killed_is_done_by_building_the_plan_again(
    source: Query, target: Query, killed: str
) -> None:
    origin = source.origin(5)
    target.start(3, origin=origin.manifest)
    if killed != "before it reads":
        with pytest.raises(Killed):
            copy(target, origin, DyingStore(target.storage, killed.split(maxsplit=1)[0]))
    lost = list(target.root.rglob("*.seg"))
    assert len(lost) == (killed == "after put")
    assert target.sql("SELECT FROM cairn.checkpoints WHERE job_id = :job") == []
    assert build(target, url_of(source))
    assert target.state(5) == remembered(5)
    go_on(target, 3)
    target.age_intents()
    cleanup_job(target.catalog, target.job)
    assert target.state(8) == remembered(8)
    assert not any(p.exists() for p in lost), "nobody needs the first try's copy"


def test_a_job_that_began_from_nothing_is_not_restored_any_more(
    source: Query, target: Query
) -> None:
    target.start(2).batch(0)
    with pytest.raises(RefusedError, match="has begun batches without restoring"):
        build(target, url_of(source))
    assert target.sql("SELECT epoch FROM cairn.runs") == [(1,)], "no run was registered"
    target.batch(1)
    assert not build(target, url_of(source)), "it goes on from the state that it has"


def test_a_plan_that_began_while_another_restored_is_refused_to_the_latter(
    source: Query, target: Query
) -> None:
    origin = source.origin(5)
    slow = replace_query(target).start(2, origin=origin.manifest)
    target.start(2)
    target.batch(0)
    with pytest.raises(FencedError, match="run 1 was replaced by run 2"):
        copy(slow, origin)
    assert target.state(1) == remembered(1)


def test_an_older_plan_without_restore_continues_from_what_a_newer_one_restored(
    source: Query, target: Query
) -> None:
    older = replace_query(target).start(2)
    build(target, url_of(source), 2)
    older.batch(0, write=remember(5))
    older.batch(1, write=remember(6))
    assert older.state(7) == remembered(7)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_parallelism": 16}, r"max-parallelism is 16, but the manifest was made with 8"),
        ({"time_mode": "eventtime"}, "timeMode is 'eventtime', but the manifest"),
        (
            {"key_schema": {"fields": [{"name": "user", "type": "long"}]}},
            "the key is user long, but the manifest was made with the key",
        ),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_and_the_job_is_not_made(
    source: Query, target: Query, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInputError, match=says):
        build(target, url_of(source), **changes)
    assert target.do(lambda c: c.exec_driver_sql("SELECT FROM cairn.jobs").all()) == []


def test_without_the_option_the_job_has_the_manifests_key_groups(
    source: Query, target: Query
) -> None:
    with pytest.raises(BadInputError, match=r"parallelism is 9, but .* 8 key groups"):
        build(target, url_of(source), parallelism=9, max_parallelism=None)
    assert build(target, url_of(source), parallelism=8, max_parallelism=None)
    assert target.plan.max_parallelism == 8
    assert target.state(5) == remembered(5)


def test_a_job_registered_with_other_key_groups_is_not_restored(
    source: Query, target: Query
) -> None:
    target.start(2, max_parallelism=None)
    with pytest.raises(BadInputError, match="max-parallelism is 128, but the manifest was"):
        build(target, url_of(source), max_parallelism=None)


def damage_manifest(source: Query) -> None:
    path = source.root / "chk-5" / "_metadata"
    path.write_bytes(path.read_bytes()[:-1] + b"]")


def remove_a_file(source: Query) -> None:
    (source.root.parent / source.origin(5).manifest.files[0].path).unlink()


def damage_a_file(source: Query) -> None:
    for path in source.root.rglob("*.seg"):
        path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        (damage_manifest, CorruptSegmentError, "the manifest is not what was written"),
        (remove_a_file, StorageError, r"cannot be copied: .*no such object.*restore a savepoint"),
        (damage_a_file, CorruptSegmentError, r"is not what was written.*words, checkpoint 5, file"),
    ],
)
def test_damage_is_refused_and_the_job_starts_once_it_is_mended(
    source: Query,
    target: Query,
    damage: Callable[[Query], None],
    error: type[CairnError],
    says: str,
) -> None:
    before = {path: path.read_bytes() for path in source.root.rglob("*") if path.is_file()}
    damage(source)
    with pytest.raises(error, match=says):
        build(target, url_of(source))
    for path, data in before.items():
        path.write_bytes(data)
    assert build(target, url_of(source))
    assert target.state(5) == remembered(5)


@pytest.mark.parametrize("url", ["s3://bucket/x", "/data/job/chk-1", "/d/job/chk-x/_metadata"])
def test_a_url_that_is_no_manifests_is_refused(url: str) -> None:
    with pytest.raises(BadInputError, match="not the URL of a manifest"):
        check_manifest_url(url)


def test_times_and_variables_continue_from_the_manifest(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    source = StatefulJob(metastore_url, tmp_storage)
    source.register(time_mode="eventtime", delays_ms=[10])  # type: ignore[arg-type]
    source.batch(put_count(1, "eu", 1), max_event_ms=(1_000,))
    source.register(STATES[1:], deleted=["count"], time_mode="eventtime", delays_ms=[10])  # type: ignore[arg-type]
    source.batch(put_count(2, "eu", 1), max_event_ms=(5_000,))
    source.batch(max_event_ms=(9_000,))
    query = Query(metastore_url, tmp_storage, str(tmp_path / "local"), job="clicks").start(
        key_schema=KEY, time_mode="eventtime"
    )
    query.savepoint(2)
    origin = query.origin(2)
    assert origin.manifest.max_event_ms == (5_000,)
    query.savepoint(1)
    assert not query.origin(1).manifest.variables[0].is_dropped, "it was dropped by checkpoint 2"
    again = replace_query(query, job="again").start(
        2,
        origin=origin.manifest,
        key_schema=KEY,
        time_mode="eventtime",
        watermark_delays_ms=[10],
        states=STATES[1:],
    )
    assert {n: s.state_id for n, s in again.run.states.items()} == {"seen": 2, "by_word": 3}
    assert again.run.dropped_state_ids == (1,)
    copy(again, origin)
    start = again.do(lambda c: begin_batch(c, again.plan.batch(QUERY, 0)))
    assert (start.watermark_ms, start.late_watermark_ms) == (4_990, 990)
    assert start.processing_ms >= origin.manifest.processing_ms


def test_a_job_takes_variables_of_one_manifest_alone_whatever_was_built_before(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    source = StatefulJob(metastore_url, tmp_storage).register()
    for n in range(2):
        source.batch(put_count(1, "eu", n))
    query = Query(metastore_url, tmp_storage, str(tmp_path / "local"), job="clicks")
    query.start(key_schema=KEY)
    query.savepoint(1)
    origin = query.origin(1)
    again = replace_query(query, job="again").start(key_schema=KEY, states=STATES[1:])
    registration = replace(
        again.registration(),
        run_id=uuid4(),
        origin=origin.manifest,
        key_schema=KEY,
        states=STATES,
    )
    again.do(lambda c: register_run(c, registration))
    with pytest.raises(RefusedError, match="another run changed count, seen, by_word after"):
        again.do(lambda c: begin_batch(c, again.plan.batch(QUERY, 0)))
    first, *others = origin.manifest.variables
    variables = (replace(first, name="other"), *others)
    other = replace(
        registration, run_id=uuid4(), origin=replace(origin.manifest, variables=variables)
    )
    with pytest.raises(RefusedError, match="variables of its own, such as 'count'"):
        again.do(lambda c: register_run(c, other))


def replace_query(query: Query, **changes: Any) -> Query:
    """Returns a query of the same job that is not started."""
    facts = {"job": query.job, "interval": query.interval, **changes}
    return Query(query.url, query.storage, query.local_dir, **facts)
