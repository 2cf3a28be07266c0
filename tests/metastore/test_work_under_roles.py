"""The code that jobs, maintenance and readers run, each as a login with no more than its role."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import make_url, text

from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.catalog.cleanup.quarantine import confirm_root, restore
from cairn.catalog.job.begin import begin_batch
from cairn.catalog.job.materializations import Materialized, record_end, record_start
from cairn.catalog.savepoints.pins import remove_pins
from cairn.cli import main
from cairn.errors import BadInputError
from cairn.layout import owner_file, shared_file
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.compaction import compact_job
from cairn.maintenance.compaction_plan import CompactionOptions
from cairn.maintenance.heal import heal_job
from cairn.maintenance.scrub import scrub_job
from cairn.maintenance.sweep import sweep_job
from cairn.savepoints.write_manifest import pin
from cairn.state.handle import StateDeclaration
from cairn.storage import ObjectStore, open_store
from metastore.enums import PinKind
from tests.maintenance.damaged import DamagedJob
from tests.maintenance.wasteful_job import WastefulJob
from tests.metastore.steps import Steps

VIEWS = (
    "v_jobs",
    "v_checkpoint_history",
    "v_pins",
    "v_files",
    "v_space_amplification",
    "v_native_comparison",
    "v_directories",
    "v_materialization",
    "v_metrics",
)
LISTS = [
    StateDeclaration(name="split", kind="operator_list", value_schema={"fields": []}),
    StateDeclaration(name="union", kind="operator_union", value_schema={"fields": []}),
]
STATES = [StateDeclaration(name="count", kind="value", value_schema={"fields": []})]


@pytest.fixture
def logins(metastore_url: str) -> Iterator[dict[str, str]]:
    """The metastore's URL by role, each for a login that is a member of that role alone."""
    users = {
        role: f"{role}_{uuid4().hex[:8]}"
        for role in ("cairn_writer", "cairn_maintainer", "cairn_reader")
    }
    for role, user in users.items():
        execute(metastore_url, f"CREATE ROLE {user} LOGIN IN ROLE {role}")
    yield {
        role: make_url(metastore_url).set(username=user).render_as_string(False)
        for role, user in users.items()
    }
    dispose_engines()
    execute(metastore_url, f"DROP ROLE {', '.join(users.values())}")


@pytest.fixture
def store(tmp_storage: str) -> ObjectStore:
    return open_store(tmp_storage)


@pytest.fixture
def written(logins: dict[str, str], store: ObjectStore) -> Steps:
    """A job that a writer took from its first run to a second one that replaced it."""
    job = Steps(logins["cairn_writer"], store.url)
    run = job.register_as(job.registration(states=STATES))
    job.whole_batch(run.epoch, 0)
    job.whole_batch(run.epoch, 1)
    based = job.ref(run.epoch, 2)
    begun = job.begin(based)
    made = uuid4()
    job.run(lambda c: record_start(c, based, 0, made))
    base = job.base(based, begun.checkpoint_id - 1, (0, 8))
    job.install(based, base)
    job.run(lambda c: record_end(c, made, Materialized.of([base[1]]), None))
    job.ack(based, begun.checkpoint_id, 0)
    second = job.register()
    for batch_id in (2, 3, 4, 5):
        job.whole_batch(second, batch_id)
    for (path,) in job.sql("SELECT path FROM cairn.physical_files WHERE job_id = :job"):
        store.put(path, [b"x"])
    return job


def execute(url: str, statement: str) -> int:
    """Runs a statement; returns how many rows it found or changed."""
    return Catalog(url).run("testing", lambda c: c.execute(text(statement)).rowcount)


def paths(job: Steps, status: str) -> set[str]:
    """Returns the paths of a job's files in a status."""
    statement = "SELECT path FROM cairn.physical_files WHERE job_id = :job AND status = :status"
    return {path for (path,) in job.sql(statement, status=status)}


def test_writer_takes_a_job_through_runs_batches_acks_and_bases(written: Steps) -> None:
    statuses = written.statuses()
    assert sorted(statuses.values()) == ["ABORTED", "COMPLETED", *["CONFIRMED"] * 5]
    assert written.segments(max(statuses))
    released = (
        "SELECT 1 FROM cairn.segments WHERE job_id = :job AND released_checkpoint IS NOT NULL"
    )
    assert written.sql(released)


def test_maintainer_plans_applies_and_deletes(
    written: Steps, logins: dict[str, str], store: ObjectStore
) -> None:
    url = logins["cairn_maintainer"]
    forecast = cleanup_job(Catalog(url), written.name, dry_run=True)
    report = cleanup_job(Catalog(url), written.name)
    assert report.subsumed_checkpoints == forecast.subsumed_checkpoints == 3
    assert report.deleted_files == forecast.deleted_files >= 2
    assert len(paths(written, "DELETED")) == report.deleted_files
    stored = {found.path for found in store.list("")}
    assert stored == paths(written, "SEALED") | {owner_file(written.job_id, 1)}


def test_maintainer_sweeps_takes_out_and_deletes_orphans(
    written: Steps, logins: dict[str, str], store: ObjectStore, metastore_url: str
) -> None:
    catalog = Catalog(logins["cairn_maintainer"])
    orphans = [shared_file(written.job_id, 0, 2, str(uuid4())) for _ in range(2)]
    for path in orphans:
        store.put(path, [b"x"])
    catalog.run("confirming", lambda c: confirm_root(c, written.job_id))
    sweep = partial(sweep_job, catalog, written.name, unsafe_min_age=timedelta(0))
    assert sweep().quarantined == 2
    out = catalog.run("restoring", lambda c: restore(c, written.job_id, orphans[:1]))
    assert out == orphans[:1]
    aged = (
        "SET LOCAL session_replication_role = replica;"
        " UPDATE cairn.quarantined_objects SET quarantined_at = now() - INTERVAL '9 days',"
        " quarantined_until = now() - INTERVAL '2 days'"
    )
    execute(metastore_url, aged)
    assert sweep().deleted == 1
    with pytest.raises(BadInputError, match="permission denied"):
        written.sql("SELECT * FROM cairn.quarantined_objects")


def test_maintainer_compacts(
    logins: dict[str, str], metastore_url: str, store: ObjectStore
) -> None:
    job = WastefulJob(metastore_url, store.url).create()
    path = job.waste()
    report = compact_job(Catalog(logins["cairn_maintainer"]), job.name, CompactionOptions())
    assert report.done is not None
    assert report.done.rewritten_files == 1
    job.subsume()
    assert path not in job.objects()


def test_maintainer_heals_and_writer_restores_around_what_is_damaged(
    logins: dict[str, str], tmp_storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAIRN_STORAGES", tmp_storage)
    job = DamagedJob(logins["cairn_writer"], tmp_storage, str(tmp_path / "local"))
    maintainer = Catalog(logins["cairn_maintainer"])
    job.run(3)
    newest = job.run(1, materializes=True)
    newest = job.run(2)
    job.flip(job.bases(newest)[0])
    assert scrub_job(maintainer, job.plan.job, sample_percent=None).damaged_segments == 1
    job.lose_local_state()
    job.run(1)
    assert heal_job(maintainer, job.plan.job).healed == 1
    job.assert_reads_back(job.run(1))


def test_writer_continues_with_operator_lists_and_maintainer_condemns_old_ones(
    logins: dict[str, str], store: ObjectStore
) -> None:
    job = Steps(logins["cairn_writer"], store.url)
    run = job.register_as(job.registration(parallelism=1, states=LISTS))
    assert (run.split_lists, run.union_lists) == ((1,), (2,))
    for batch_id in range(5):
        batch = job.ref(run.epoch, batch_id)
        start = job.run(partial(begin_batch, batch=batch, with_lists=True))
        job.ack_with_lists(batch, start.checkpoint_id, 0, changed=False)
    assert start.parent is not None
    assert start.parent.lists.keys() == {0}
    report = cleanup_job(Catalog(logins["cairn_maintainer"]), job.name)
    assert (report.subsumed_checkpoints, report.dead_segments) == (2, 2)


def test_writer_pins_and_unpins_and_maintainer_keeps_what_is_pinned(
    written: Steps, logins: dict[str, str]
) -> None:
    oldest = min(i for i, status in written.statuses().items() if status == "CONFIRMED")
    pinned = pin(written.catalog, written.name, oldest, kind=PinKind.PIN)
    cleanup_job(Catalog(logins["cairn_maintainer"]), written.name)
    assert written.statuses()[oldest] == "CONFIRMED"
    written.run(lambda c: remove_pins(c, written.name, [pinned.pin_id]))
    cleanup_job(Catalog(logins["cairn_maintainer"]), written.name)
    assert written.statuses()[oldest] == "SUBSUMED"


def test_reader_sees_the_views_and_the_lists_and_no_table(
    written: Steps, logins: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    pin(written.catalog, written.name, None, kind=PinKind.SAVEPOINT)
    url = logins["cairn_reader"]
    for view in VIEWS:
        query = f"SELECT * FROM cairn.{view} WHERE job_name = '{written.name}'"  # noqa: S608
        assert execute(url, query) > 0
    for command in (
        ["jobs"],
        ["checkpoints", written.name],
        ["files", written.name],
        ["pins", written.name],
        ["metrics", written.name],
    ):
        assert main([*command, "--metastore", url, "--json"]) == 0
        assert written.name in capsys.readouterr().out
    with pytest.raises(BadInputError, match="permission denied"):
        execute(url, "SELECT * FROM cairn.placed_segments")


def test_no_role_does_the_work_of_another(written: Steps, logins: dict[str, str]) -> None:
    with pytest.raises(BadInputError, match="permission denied"):
        cleanup_job(written.catalog, written.name)
    intruder = Steps(logins["cairn_maintainer"], written.storage)
    with pytest.raises(BadInputError, match="permission denied"):
        intruder.register()
