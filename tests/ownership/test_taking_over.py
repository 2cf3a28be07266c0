"""Making a root one's own: in which order, by whom, and killed in between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from cairn.catalog.catalog import Catalog
from cairn.cli import main
from cairn.errors import CairnError, CorruptSegmentError, RefusedError, StorageError
from cairn.layout import owner_file
from cairn.maintenance.cleanup import cleanup_job
from cairn.owner import Standing
from cairn.ownership import take
from cairn.ownership.check import look_up, require_owner
from cairn.ownership.objects import newest_generation, read_owner
from cairn.ownership.take import own_root, take_over
from cairn.runtime.driver import build_plan
from cairn.runtime.driver.job_spec import JobSpec
from cairn.savepoints.rebuild import rebuild
from cairn.settings import Settings
from cairn.storage.posix import PosixStore
from tests.databases import connect
from tests.maintenance.synthetic import SyntheticJob
from tests.savepoints.jobs import Query


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage).create()


@pytest.fixture
def live(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Query:
    query = Query(metastore_url, tmp_storage, str(tmp_path / "local"), interval=1).start()
    for batch_id in range(3):
        query.batch(batch_id)
    return query


class Killed(BaseException):
    """What ends a process that is killed: nothing handles it."""


@pytest.mark.parametrize("step", ["write_owner", "after write_owner", "_end"])
@pytest.mark.parametrize("taking", [own_root, take_over])
def test_killed_at_any_step_the_next_try_finishes(
    live: Query, other_url: str, monkeypatch: pytest.MonkeyPatch, step: str, taking: Any
) -> None:
    rebuild(Catalog(other_url), live.storage)
    job_id = live.plan.job_id
    if taking is own_root:
        for path in (live.root / "owner").iterdir():
            path.unlink()
    name = step.removeprefix("after ")
    real = getattr(take, name)

    def die(*arguments: Any) -> None:
        if step.startswith("after"):
            real(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(take, name, die)
        with pytest.raises(Killed):
            taking(Catalog(other_url), live.store, job_id)
    if step == "write_owner" and taking is take_over:
        require_owner(live.catalog, live.store, job_id)
    taking(Catalog(other_url), live.store, job_id)
    require_owner(Catalog(other_url), live.store, job_id)
    other = Query(other_url, live.storage, live.local_dir)
    other.plan = live.plan
    kept = other.sql("SELECT generation, written_at IS NOT NULL FROM cairn.ownerships ORDER BY 1")
    assert all(is_written for _, is_written in kept[-1:])
    assert kept[-1][0] == newest_generation(live.store, job_id)
    if step == "write_owner":
        assert len(kept) == 1, "the same try goes on"


class Together(PosixStore):
    """Holds every write back until two are to be made."""

    barrier: Barrier

    def put(self, path: str, chunks: Sequence[bytes | memoryview]) -> None:
        self.barrier.wait(10)
        super().put(path, chunks)


def test_of_two_that_take_one_generation_one_has_it(
    live: Query, other_url: str, tmp_path: Path
) -> None:
    rebuild(Catalog(other_url), live.storage)
    store, job_id = Together(tmp_path / "storage"), live.plan.job_id
    store.barrier = Barrier(2)

    def attempt(catalog: Catalog) -> int | CairnError:
        try:
            return take_over(catalog, store, job_id).generation
        except RefusedError as error:
            return error

    catalogs = [live.catalog, Catalog(other_url)]
    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(attempt, catalogs))
    assert sorted(map(type, outcomes), key=str) == sorted([int, RefusedError], key=str)
    standings = [look_up(catalog, live.store, job_id).standing for catalog in catalogs]
    assert sorted(one.name for one in standings) == ["FOREIGN", "OWNED"]
    loser = catalogs[standings.index(Standing.FOREIGN)]
    with pytest.raises(RefusedError, match="generation 2"):
        cleanup_job(loser, "words")
    assert take_over(loser, live.store, job_id).generation == 3


def test_two_drivers_of_one_metastore_own_a_new_root_together(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    query = Query(metastore_url, tmp_storage, str(tmp_path / "local")).start()
    (query.root / "owner" / f"{1:020}").unlink()
    with connect(query.url) as connection:
        connection.exec_driver_sql("SET session_replication_role = replica")
        connection.exec_driver_sql("DELETE FROM cairn.ownerships")
    store = Together(tmp_path / "storage")
    store.barrier = Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(own_root, query.catalog, store, query.plan.job_id) for _ in range(2)]
        for one in done:
            one.result()
    require_owner(query.catalog, query.store, query.plan.job_id)
    assert query.sql("SELECT generation FROM cairn.ownerships") == [(1,)]


def test_a_metastore_that_takes_over_beside_its_own_cleanup_does_not_refuse_it(
    job: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = newest_generation
    taken: list[str] = []

    def taken_meanwhile(store: Any, job_id: str) -> int:
        if not taken:
            taken.append("once")
            take_over(job.catalog, job.store, job.job_id)
        return real(store, job_id)

    monkeypatch.setattr("cairn.ownership.check.newest_generation", taken_meanwhile)
    require_owner(job.catalog, job.store, job.job_id)


def test_a_plan_owns_the_root_before_it_writes_or_is_refused(
    metastore_url: str, other_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    query = Query(metastore_url, tmp_storage, str(tmp_path / "local"))
    spec = JobSpec(
        name="words",
        storage=tmp_storage,
        metastore=metastore_url,
        parallelism=2,
        settings=Settings(local_dir=query.local_dir),
    )
    run, _ = build_plan._register(spec, query.registration(), None)
    require_owner(query.catalog, query.store, run.job_id)
    query.start()
    for stored in query.store.list(f"{run.job_id}/owner/"):
        (tmp_path / "storage" / stored.path).unlink()
    with pytest.raises(StorageError, match="has no owner object of generation 1"):
        build_plan._register(spec, query.registration(), None)


def test_a_restart_asks_and_writes_nothing(live: Query) -> None:
    before = {stored.path for stored in live.store.list("") if "/owner/" in stored.path}
    live.start()
    after = {stored.path for stored in live.store.list("") if "/owner/" in stored.path}
    assert after == before == {owner_file(live.plan.job_id, 1)}
    assert live.sql("SELECT count(*) FROM cairn.ownerships") == [(1,)]


def test_checkpoints_continue_above_all_manifests_of_a_lost_history(live: Query) -> None:
    newest = live.root / "chk-2"
    (live.root / "chk-700").mkdir()
    (live.root / "chk-700" / "_metadata").write_bytes((newest / "_metadata").read_bytes())
    assert take_over(live.catalog, live.store, live.plan.job_id).newest_manifest == 700
    assert live.start().batch(3) > 700 + 9_999


def test_an_owner_object_that_cannot_be_read_refuses_all_until_the_next_is_written(
    live: Query,
) -> None:
    (live.root / "owner" / f"{1:020}").write_bytes(b"x")
    for call in (live.start, lambda: cleanup_job(live.catalog, "words")):
        with pytest.raises(CorruptSegmentError, match=r"cannot be read.*take-over"):
            call()
    taken = take_over(live.catalog, live.store, live.plan.job_id)
    assert (taken.generation, taken.from_metastore) == (2, None)
    live.start()


def test_a_rebuild_reports_what_was_deleted_before_it_owned_the_root(
    live: Query, other_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [{f.path for f in live.origin(n).manifest.files} for n in (1, 2)]
    file = min(files[1] - files[0])

    def late(*arguments: Any) -> None:
        (live.root.parent / file).unlink()
        take_over(*arguments)

    monkeypatch.setattr("cairn.savepoints.rebuild.take_over", late)
    report = rebuild(Catalog(other_url), live.storage, takes_over=True)
    assert len(report.jobs) == 1
    [problem] = report.problems
    assert problem.endswith(
        f"its file {file} is missing since it was read: the last owner has deleted it. "
        "Its checkpoint cannot be restored"
    )


def cairn(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_commands_rehearse_and_take_over(
    live: Query, other_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ("--metastore", other_url, "--json")
    code, out, err = cairn(capsys, "metastore", "rebuild", live.storage, *there)
    assert (code, len(json.loads(out))) == (0, 1)
    assert err.startswith("not taken over: words-")
    assert "take-over words" in err
    take_words = ("metastore", "take-over", "words", *there)
    code, out, _ = cairn(capsys, *take_words, "--dry-run")
    [row] = json.loads(out)
    assert (code, row["generation"], row["dry_run"]) == (0, 2, True)
    require_owner(live.catalog, live.store, live.plan.job_id)
    code, out, _ = cairn(capsys, *take_words)
    [row] = json.loads(out)
    before = read_owner(live.store, live.plan.job_id, 1).metastore_id
    assert (code, row["generation"], row["from_metastore"]) == (0, 2, before)
    require_owner(Catalog(other_url), live.store, live.plan.job_id)
    assert cairn(capsys, "metastore", "take-over", "--all", *there)[0] == 0
    assert newest_generation(live.store, live.plan.job_id) == 3
    code, _, err = cairn(capsys, "metastore", "take-over", "nobody", *there)
    assert (code, "no job 'nobody'; there are: words" in err) == (2, True)
    assert cairn(capsys, "metastore", "take-over", *there)[0] == 2
