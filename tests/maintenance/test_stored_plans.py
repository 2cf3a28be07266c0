"""Plans and their application as steps of their own, and circuit breakers in between."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, make_url, text

from cairn.catalog.catalog import Catalog
from cairn.catalog.maintenance.plans import StoredPlan
from cairn.errors import BadInputError, RefusedError
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.plans import pass_breakers, read
from metastore.enums import MaintenanceAction
from tests.forked import Forked
from tests.maintenance.killed import apply
from tests.maintenance.synthetic import SyntheticJob, dump
from tests.maintenance.test_cleanup import assert_clean

SUBSUMPTION = MaintenanceAction.SUBSUMPTION


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> SyntheticJob:
    return SyntheticJob(metastore_url, tmp_storage).create()


def planned(job: SyntheticJob) -> StoredPlan:
    stored = plan_action(job.catalog, SUBSUMPTION, job.name)
    assert stored is not None
    return stored


def test_planning_stores_the_plan_and_changes_nothing_else(job: SyntheticJob) -> None:
    rows, objects = dump(job.url), job.objects()
    stored = planned(job)
    after = dump(job.url)
    assert len(after.pop("maintenance_runs")) == 1
    assert (after | {"maintenance_runs": []}, job.objects()) == (rows, objects)
    assert (stored.status, stored.files, stored.size_bytes) == (
        "PLANNED",
        job.DOOMED,
        job.FREED_BYTES,
    )
    assert {file["path"] for file in stored.plan["condemned_files"]} == job.doomed


def test_a_stored_plan_is_applied_by_another_process_and_deletes_what_it_says(
    job: SyntheticJob,
) -> None:
    stored = planned(job)
    process = Forked(apply, job.url, stored.run_id)
    assert process.run()
    result = process.result
    assert (result["condemned_files"], result["deleted_files"]) == (job.DOOMED, job.DOOMED)
    assert_clean(job)
    again = apply_plan(job.catalog, stored.run_id)
    assert (again["condemned_files"], again["deleted_files"]) == (job.DOOMED, 0)


def test_where_there_is_nothing_to_do_no_plan_is_stored(job: SyntheticJob) -> None:
    cleanup_job(job.catalog, job.name)
    rows = dump(job.url)
    assert plan_action(job.catalog, SUBSUMPTION, job.name) is None
    noted = dump(job.url)["good_runs"]
    assert len(noted) == 1
    assert dump(job.url) == rows | {"good_runs": noted}


def test_a_plan_older_than_an_hour_is_not_applied(job: SyntheticJob) -> None:
    stored = planned(job)
    job.execute("UPDATE cairn.maintenance_runs SET planned_at = now() - interval '61 min'")
    with pytest.raises(RefusedError, match="older than 60 min"):
        apply_plan(job.catalog, stored.run_id)
    with pytest.raises(RefusedError, match=r"has failed.*Make a new one with `cairn plan subsump"):
        apply_plan(job.catalog, stored.run_id)
    assert len(job.objects()) == len(job.needed | job.doomed) - 1  # one never got its bytes


def test_a_plan_that_nobody_has_stored_is_named(job: SyntheticJob) -> None:
    unknown = uuid4()
    with pytest.raises(BadInputError, match=f"no plan {unknown}"):
        apply_plan(job.catalog, unknown)


def lose_what_is_live(job: SyntheticJob) -> None:
    """Has all live files but the doomed ones lose their segments, as wrong rows would say."""
    with job.catalog.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(
            "UPDATE cairn.physical_files SET live_segments = 0, live_bytes = 0"
        )
        connection.exec_driver_sql("UPDATE cairn.placed_segments SET status = 'DEAD'")


def test_a_plan_that_leaves_nothing_is_refused_until_somebody_passes_it(
    job: SyntheticJob,
) -> None:
    lose_what_is_live(job)
    objects = job.objects()
    with pytest.raises(RefusedError, match=r"circuit breaker spoke.*nothing is left.*--pass empty"):
        cleanup_job(job.catalog, job.name)
    assert job.objects() == objects
    [(run, status)] = job.execute("SELECT maintenance_run_id, status FROM cairn.maintenance_runs")
    assert status == "REFUSED"
    run_id = UUID(str(run))
    with pytest.raises(RefusedError, match="circuit breaker spoke"):
        apply_plan(job.catalog, run_id)
    with pytest.raises(RefusedError, match="empty-live-set spoke"):
        pass_breakers(job.catalog, run_id, ["share"], "ada")
    with pytest.raises(BadInputError, match="say who"):
        pass_breakers(job.catalog, run_id, ["empty-live-set"], " ")
    assert not job.execute("SELECT FROM cairn.deletions")
    for _ in range(2):
        assert pass_breakers(job.catalog, run_id, ["empty-live-set"], "ada").passed_by == "ada"
    with pytest.raises(RefusedError, match="there is no circuit breaker to pass"):
        pass_breakers(job.catalog, run_id, ["empty-live-set"], "eve")
    assert apply_plan(job.catalog, run_id)["deleted_files"] > 0
    decisions = job.execute(
        "SELECT decision, reason FROM cairn.v_maintenance_decisions ORDER BY decided_at"
    )
    assert [decision for decision, _ in decisions] == ["REFUSED", "PASSED"]
    assert "by ada: nothing is left" in decisions[1][1]


def test_a_manifest_alone_is_no_state_that_is_left(job: SyntheticJob) -> None:
    lose_what_is_live(job)
    path = f"{job.job_id}/chk-5/_metadata"

    def add(connection: Connection) -> None:
        file_id = job.add_file(connection, path, segments=2)
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.execute(
            text(
                "UPDATE cairn.physical_files SET live_segments = 1, live_bytes = 1"
                " WHERE file_id = :file"
            ),
            {"file": file_id},
        )

    job.catalog.run("adding a manifest", add)
    assert planned(job).spoken == ("empty-live-set",)


def test_a_job_whose_newest_bases_are_empty_may_lose_all_its_files(job: SyntheticJob) -> None:
    lose_what_is_live(job)
    job.execute(
        "INSERT INTO cairn.materializations (materialization_id, job_id, epoch, subtask,"
        " finished_at, kind, entries) SELECT gen_random_uuid(), :job, 2, s, now(), 'keyed_full', 0"
        " FROM generate_series(0, 1) AS s"
    )
    assert planned(job).spoken == ()
    job.execute("UPDATE cairn.materializations SET entries = 1 WHERE subtask = 1")
    assert planned(job).spoken == ("empty-live-set",)


def test_bytes_beyond_the_limit_are_refused_also_in_several_plans(
    job: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAIRN_MAX_DELETED_SIZE", f"{job.FREED_BYTES}b")
    other = planned(job)
    job.execute("UPDATE cairn.maintenance_runs SET status = 'APPLIED'")
    assert other.status == "PLANNED"
    stored = planned(job)
    assert (stored.status, stored.spoken) == ("REFUSED", ("bytes",))
    job.execute(
        "UPDATE cairn.maintenance_runs SET planned_at = planned_at - interval '61 min'"
        " WHERE status = 'APPLIED'"
    )
    assert planned(job).status == "PLANNED"


def test_a_share_beyond_the_limit_is_refused(
    job: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = job.DOOMED + len(job.needed)
    percent = 100 * job.DOOMED // files
    monkeypatch.setenv("CAIRN_MAX_DELETED_SHARE", str(percent - 30))
    assert planned(job).spoken == ("share",)
    monkeypatch.setenv("CAIRN_MAX_DELETED_SHARE", "99")
    assert planned(job).spoken == ()


def test_a_clock_that_is_behind_what_it_has_said_is_refused(job: SyntheticJob) -> None:
    planned(job)
    job.execute("UPDATE cairn.maintenance_runs SET planned_at = now() + interval '2 min'")
    assert planned(job).spoken == ("clock",)


def test_files_that_stay_although_they_were_planned_are_recorded(job: SyntheticJob) -> None:
    stored = planned(job)
    cleanup_job(job.catalog, job.name)
    apply_plan(job.catalog, stored.run_id)
    skipped = job.execute(
        "SELECT path, reason FROM cairn.maintenance_decisions WHERE decision = 'SKIPPED'"
        " AND maintenance_run_id = :run",
        run=stored.run_id,
    )
    assert {path for path, _ in skipped} == job.doomed
    assert {reason for _, reason in skipped} == {"another cleanup has condemned it"}


def test_a_maintainer_plans_passes_and_applies_with_its_rights_alone(
    job: SyntheticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAIRN_MAX_DELETED_SIZE", "1b")
    maintainer = make_url(job.url).update_query_dict({"options": "-c role=cairn_maintainer"})
    catalog = Catalog(maintainer.render_as_string(hide_password=False))
    stored = plan_action(catalog, SUBSUMPTION, job.name)
    assert stored is not None
    pass_breakers(catalog, stored.run_id, stored.spoken, "ada")
    apply_plan(catalog, stored.run_id)
    assert_clean(job)
    assert read(catalog, stored.run_id).status == "APPLIED"
