"""The view of metrics: what each counts, of which run, and over which checkpoints."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text, update

from cairn.catalog.job.acks import acknowledge
from cairn.catalog.job.files import seal_files
from cairn.catalog.job.upload_stats import UploadStats
from cairn.catalog.maintenance.plans import note_good_run
from cairn.catalog.metrics import METRICS, MetricKind, MetricScope
from metastore.enums import MaintenanceAction, Scope
from metastore.models import Deletion, Job, PhysicalFile
from tests.metastore.metric_values import histogram, metric, metric_rows
from tests.metastore.rows import Rows
from tests.metastore.steps import Steps

QUANTILES = [0.5, 0.75, 0.95, 0.98, 0.99, 0.999]
HISTOGRAM_KINDS = {"quantile", "sum", "count"}


@pytest.fixture
def begun(rows: Rows) -> Rows:
    """The job, in its first run, with a checkpoint in progress."""
    begin(rows, 1)
    rows.checkpoint(1)
    return rows


@pytest.fixture
def steps(shared_metastore_url: str, tmp_storage: str) -> Steps:
    return Steps(shared_metastore_url, tmp_storage)


def begin(rows: Rows, epoch: int, next_checkpoint_id: int = 10) -> None:
    """Makes a run the job's current one."""
    changed = {"current_epoch": epoch, "next_checkpoint_id": next_checkpoint_id}
    rows.execute(update(Job).where(rows.own(Job)).values(**changed))


def of(rows: Rows, name: str) -> dict[Any, float]:
    return metric(rows.url, rows.job_id, name)


def distribution(rows: Rows, name: str) -> dict[str, dict[Any, float]]:
    return histogram(rows.url, rows.job_id, name)


def test_every_metric_that_is_described_is_in_the_view_and_no_other(begun: Rows) -> None:
    begun.segment(begun.file())
    begun.checkpoint(2, "COMPLETED")
    begun.ack(2, 0, input_rows=1)
    begun.upload(2)
    for kind in ("keyed_full", "keyed_increment"):
        begun.materialization(kind=kind, finished_at=datetime.now(UTC), size_bytes=1)
    note(begun, MaintenanceAction.SCRUB)
    kinds: dict[str, set[str]] = {}
    scopes: dict[str, MetricScope] = {}
    for row in metric_rows(begun.url, begun.job_id):
        kinds.setdefault(row["metric"], set()).add(row["kind"])
        by = MetricScope.SUBTASK if row["subtask"] is not None else MetricScope.JOB
        by = MetricScope.ACTION if row["action"] is not None else by
        scopes[row["metric"]] = by if row["tm_id"] is None else MetricScope.TASK_MANAGER
    assert kinds == {
        known.name: HISTOGRAM_KINDS if known.kind is MetricKind.HISTOGRAM else {known.kind.value}
        for known in METRICS
    }
    assert scopes == {known.name: known.scope for known in METRICS}


def note(rows: Rows, action: MaintenanceAction) -> None:
    rows.catalog.run("noting", lambda c: note_good_run(c, rows.job_id, action))


def seconds_since(rows: Rows) -> dict[str, float]:
    """Returns by action how long ago it was last done, in seconds without a fraction."""
    return {
        row["action"]: row["value"] // 1
        for row in metric_rows(rows.url, rows.job_id)
        if row["metric"] == "Maintenance.secondsSinceLastGoodRun"
    }


def test_the_time_since_an_action_was_done_or_had_nothing_to_do_outlives_its_rows(
    rows: Rows,
) -> None:
    assert seconds_since(rows) == {}
    note(rows, MaintenanceAction.SCRUB)
    rows.maintenance_run("PLANNED")
    assert set(seconds_since(rows)) == {"scrub"}, "a plan is no run"
    of_job = f"WHERE job_id = '{rows.job_id}'"
    runs, good = "cairn.maintenance_runs", "cairn.good_runs"
    rows.execute(text(f"UPDATE {runs} SET status = 'APPLIED' {of_job}"))  # noqa: S608
    assert set(seconds_since(rows)) == {"scrub", "subsumption"}
    ago = "finished_at = now() - interval '100 s'"
    rows.execute(text(f"UPDATE {good} SET {ago} {of_job}"))  # noqa: S608
    rows.execute(text(f"UPDATE {runs} SET planned_at = now() - interval '2 h' {of_job}"))  # noqa: S608
    rows.execute(text(f"DELETE FROM {runs} {of_job}"))  # noqa: S608
    assert seconds_since(rows) == {"scrub": 100, "subsumption": 100}
    note(rows, MaintenanceAction.SCRUB)
    assert seconds_since(rows) == {"scrub": 0, "subsumption": 100}
    ahead = "finished_at = now() + interval '100 s'"
    rows.execute(text(f"UPDATE {good} SET {ahead} {of_job}"))  # noqa: S608
    note(rows, MaintenanceAction.SCRUB)
    assert seconds_since(rows) == {"scrub": 0, "subsumption": 0}, "a clock went back"


def test_a_job_that_has_done_nothing_has_its_own_metrics_only(rows: Rows) -> None:
    found = {row["metric"]: row["value"] for row in metric_rows(rows.url, rows.job_id)}
    of_jobs = {known.name for known in METRICS if known.scope is MetricScope.JOB}
    assert found == dict.fromkeys(of_jobs - {"Storage.spaceAmplification"}, 0)


def test_file_metrics_count_live_segments_and_the_files_that_are_whole(begun: Rows) -> None:
    whole = begun.file(size_bytes=1000)
    begun.segment(whole, 150)
    begun.segment(whole, 250)
    begun.segment(whole, 600, status="DEAD")
    begun.file("CONDEMNED", size_bytes=1000)
    begun.file("DELETED", size_bytes=5000)
    begun.file("WRITING")
    assert of(begun, "fileMerging.logicalFileCount") == {None: 2}
    assert of(begun, "fileMerging.logicalFileSize") == {None: 400}
    assert of(begun, "fileMerging.physicalFileCount") == {None: 2}
    assert of(begun, "fileMerging.physicalFileSize") == {None: 2000}
    assert of(begun, "Storage.spaceAmplification") == {None: 5.0}


def test_uploads_are_summed_by_executor_since_the_current_run_began(begun: Rows) -> None:
    begun.upload(1, requests=100, failed_uploads=100, tm_id="old")
    begun.run(2, parallelism=2)
    begun.checkpoint(2, epoch=2)
    assert of(begun, "ChangelogStorage.numberOfUploadRequests") == {"old": 100}
    begin(begun, 2)
    assert of(begun, "ChangelogStorage.numberOfUploadRequests") == {}
    begun.upload(2, requests=3, failed_uploads=1, tm_id="a")
    begun.upload(2, requests=2, failed_uploads=0, tm_id="a")
    begun.upload(2, requests=1, failed_uploads=2, tm_id="b")
    assert of(begun, "ChangelogStorage.numberOfUploadRequests") == {"a": 5, "b": 1}
    assert of(begun, "ChangelogStorage.numberOfUploadFailures") == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("name", "column", "unit"),
    [
        ("ChangelogStorage.uploadSizes", "size_bytes", 1),
        ("ChangelogStorage.uploadLatenciesNanos", "upload_ms", 1_000_000),
        ("ChangelogStorage.attemptsPerUpload", "winning_attempt", 1),
        ("ChangelogStorage.totalAttemptsPerUpload", "requests", 1),
        ("ChangelogStorage.uploadBatchSizes", "segments", 1),
        ("FilePool.waitMillis", "pool_wait_ms", 1),
    ],
)
def test_a_histogram_has_the_quantiles_the_sum_and_the_count_of_its_column(
    begun: Rows, name: str, column: str, unit: int
) -> None:
    for value in range(101):
        facts: dict[str, Any] = {column: value}
        begun.upload(1, **facts)
    [found] = distribution(begun, name).values()
    assert (found.pop("sum"), found.pop("count")) == (5050 * unit, 101)
    assert found == pytest.approx({quantile: quantile * 100 * unit for quantile in QUANTILES})


def test_quantiles_are_of_the_latest_100_checkpoints_and_sums_of_the_run(rows: Rows) -> None:
    begin(rows, 1, next_checkpoint_id=1500)
    for checkpoint_id, size_bytes in ((1399, 7), (1400, 30), (1499, 50)):
        rows.checkpoint(checkpoint_id)
        rows.upload(checkpoint_id, size_bytes=size_bytes)
    [found] = distribution(rows, "ChangelogStorage.uploadSizes").values()
    assert (found["sum"], found["count"], found[0.5]) == (87, 3, 40)
    begin(rows, 1, next_checkpoint_id=9000)
    [found] = distribution(rows, "ChangelogStorage.uploadSizes").values()
    assert found == {"sum": 87, "count": 3}


def test_queue_and_busy_time_are_those_of_the_latest_uploads(begun: Rows) -> None:
    now = datetime.now(UTC)
    for seconds, queue_size, wait_ms in ((90, 9, 60_000), (20, 4, 900), (10, 2, 300)):
        begun.upload(
            1,
            queue_size=queue_size,
            wait_ms=wait_ms,
            acked_at=now - timedelta(seconds=seconds),
        )
    assert of(begun, "ChangelogStorage.uploadQueueSize") == {"tm": 2}
    assert of(begun, "changelogBusyTimeMsPerSecond") == {"tm": 20}


def test_materializations_are_counted_by_subtask_since_the_current_run_began(begun: Rows) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    made: list[dict[str, Any]] = [
        {"kind": "keyed_full", "size_bytes": 900},
        {"kind": "keyed_increment", "size_bytes": 40},
        {"error": "the store said no"},
        {},
    ]
    for minute, columns in enumerate(made):
        began = start + timedelta(minutes=minute)
        ended = began + timedelta(seconds=minute + 1)
        begun.materialization(1, started_at=began, finished_at=ended, **columns)
    begun.materialization(1, started_at=start + timedelta(minutes=9))
    begun.materialization(2, started_at=start)
    group = "ChangelogMaterialization"
    assert of(begun, f"{group}.startedMaterialization") == {1: 5, 2: 1}
    assert of(begun, f"{group}.completedMaterialization") == {1: 3, 2: 0}
    assert of(begun, f"{group}.failedMaterialization") == {1: 1, 2: 0}
    assert of(begun, f"{group}.lastDurationOfMaterialization") == {1: 4000}
    assert of(begun, "ChangelogStateBackend.lastFullSizeOfMaterialization") == {1: 900}
    assert of(begun, "ChangelogStateBackend.lastIncSizeOfMaterialization") == {1: 40}
    assert of(begun, "Storage.rewriteBytes") == {1: 940, 2: 0}
    begun.run(2, parallelism=2)
    begin(begun, 2)
    assert of(begun, f"{group}.startedMaterialization") == {}


def test_counters_of_materializations_start_again_with_a_run_and_count_each_end_once(
    begun: Rows,
) -> None:
    end = text(
        "UPDATE cairn.materializations SET finished_at = now(), size_bytes = 7"
        " WHERE job_id = :job AND epoch = :epoch"
    )
    begun.materialization(1, finished_at=datetime.now(UTC), size_bytes=100)
    begun.materialization(1)
    begun.run(2, parallelism=2)
    begin(begun, 2)
    begun.materialization(1, epoch=2)
    for epoch in (2, 2, 1):
        begun.execute(end.bindparams(job=begun.job_id, epoch=epoch))
    group = "ChangelogMaterialization"
    assert of(begun, f"{group}.startedMaterialization") == {1: 1}
    assert of(begun, f"{group}.completedMaterialization") == {1: 1}
    assert of(begun, "Storage.rewriteBytes") == {1: 7}
    whole = text(
        "SELECT started, completed, failed FROM cairn.v_materialization WHERE job_id = :job"
    )
    assert begun.execute(whole.bindparams(job=begun.job_id)) == [
        {"started": 3, "completed": 3, "failed": 0}
    ]


def test_what_is_not_materialized_is_the_changelog_in_the_newest_whole_checkpoint(
    begun: Rows,
) -> None:
    file = begun.file()
    begun.checkpoint(2, "CONFIRMED")
    begun.checkpoint(3, "COMPLETED")
    begun.checkpoint(4)
    for subtask in (0, 1):
        begun.ack(3, subtask, input_rows=1)
    begun.segment(file, 1, first_checkpoint=1, released_checkpoint=3)
    begun.segment(file, 10, first_checkpoint=2)
    begun.segment(file, 100, first_checkpoint=3, released_checkpoint=4)
    begun.segment(file, 5, first_checkpoint=2, subtask=1)
    begun.segment(file, 70, first_checkpoint=2, subtask=7)
    begun.segment(file, 900, first_checkpoint=4)
    group = "ChangelogStateBackend"
    assert of(begun, f"{group}.lastFullSizeOfNonMaterialization") == {0: 110, 1: 5, 7: 70}
    assert of(begun, f"{group}.lastIncSizeOfNonMaterialization") == {0: 100, 1: 0}


def test_failed_deletes_are_those_that_have_failed_and_are_not_done(begun: Rows) -> None:
    done, failed = begun.file("CONDEMNED"), begun.file("CONDEMNED")
    for file_id in (done, failed, begun.file("CONDEMNED")):
        begun.deletion(file_id)
    error = update(Deletion).where(begun.own(Deletion), Deletion.file_id.in_([done, failed]))
    begun.execute(error.values(attempts=3, last_error="the store said no"))
    assert of(begun, "Storage.failedDeletes") == {None: 2}
    closed = update(Deletion).where(begun.own(Deletion), Deletion.file_id == done)
    begun.execute(closed.values(attempts=4, last_error=None, done_at=text("now()")))
    assert of(begun, "Storage.failedDeletes") == {None: 1}


def test_condemned_files_wait_until_their_retention_is_over(begun: Rows) -> None:
    whole = begun.file(size_bytes=100)
    begun.segment(whole, 50)
    for minutes, status, size_bytes in ((59, "CONDEMNED", 30), (61, "CONDEMNED", 4)):
        file = begun.file(status, size_bytes=size_bytes)
        at = text(f"now() - interval '{minutes} min'")
        begun.execute(
            update(PhysicalFile).where(PhysicalFile.file_id == file).values(condemned_at=at)
        )
    never_sealed = update(PhysicalFile).where(PhysicalFile.file_id == begun.file("WRITING"))
    begun.execute(never_sealed.values(status="CONDEMNED", condemned_at=text("now()")))
    assert of(begun, "Storage.waitingFiles") == {None: 2}
    assert of(begun, "Storage.waitingBytes") == {None: 30}
    assert of(begun, "fileMerging.physicalFileCount") == {None: 3}
    assert of(begun, "Storage.spaceAmplification") == {None: 104 / 50}


def test_orphans_are_the_files_that_cleanup_takes_although_nobody_sealed_them(
    steps: Steps,
) -> None:
    def orphans() -> float:
        return metric(steps.url, steps.name, "Storage.orphanFiles")[None]

    first = steps.register()
    batch = steps.ref(first, 0)
    steps.begin(batch)
    fenced = [steps.intend(batch), steps.intend(batch, Scope.SHARED)]
    second = steps.register()
    assert orphans() == 0, "the newer run has not begun, so the older one may seal them"
    batch = steps.ref(second, 0)
    begun = steps.begin(batch)
    assert orphans() == len(fenced)
    lost_changelog = steps.intend(batch)
    base = steps.intend(batch, Scope.SHARED)
    lost_hedge = steps.intend(batch, Scope.SHARED, retry_of=base)
    assert orphans() == len(fenced), "the batch takes acks, and either request may win"
    steps.ack(batch, begun.checkpoint_id, 0, 1)
    steps.run(lambda c: seal_files(c, [base]))
    following = steps.ref(second, 1)
    steps.begin(following)
    unsealed = [steps.intend(following), steps.intend(following, Scope.SHARED)]
    expected = [*fenced, lost_changelog, lost_hedge]
    assert orphans() == len(expected)
    steps.let_writes_end()
    steps.clean()
    assert [steps.file_facts(file)[0] for file in expected] == ["DELETED"] * len(expected)
    assert [steps.file_facts(file)[0] for file in unsealed] == ["WRITING"] * len(unsealed)
    assert orphans() == 0


def test_a_group_commit_that_is_acknowledged_twice_is_counted_once(steps: Steps) -> None:
    batch = steps.ref(steps.register(), 0)
    checkpoint_id = steps.begin(batch).checkpoint_id
    acks, file = steps.group(batch, checkpoint_id, [0, 1])
    numbers = dict.fromkeys({field.name for field in fields(UploadStats)}, 2)
    stats = UploadStats(**numbers)
    for _ in range(2):
        steps.run(
            lambda c: acknowledge(
                c,
                batch,
                checkpoint_id=checkpoint_id,
                tm_id="tm",
                acks=acks,
                files={"": file},
                uploads=[stats],
                pool_wait_ms=7,
            )
        )
    requests = metric(steps.url, steps.name, "ChangelogStorage.numberOfUploadRequests")
    assert requests == {"tm": 2}
    waits = histogram(steps.url, steps.name, "FilePool.waitMillis")["tm"]
    assert (waits["sum"], waits["count"], waits[0.5]) == (7, 1, 7)
