"""History has an end: what leaves the metastore, what stays, what is refused, and the sums."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from cairn.catalog.cleanup.history import trim_history
from cairn.catalog.job.acks import acknowledge
from cairn.catalog.savepoints.manifest_rows import describe_checkpoint
from cairn.errors import FencedError, RefusedError
from cairn.maintenance.cleanup import cleanup_job
from metastore.models import Base
from tests.maintenance.history_job import (
    NEXT_BATCH,
    TRIMMED_CHECKPOINTS,
    TRIMMED_FILES,
    continue_with,
    job_with_history,
    materialize,
    newest,
    row,
    totals,
)
from tests.maintenance.synthetic import dump
from tests.metastore.ageing import let_time_pass
from tests.metastore.steps import Steps

TABLES = [table.name for table in Base.metadata.sorted_tables]


@pytest.fixture
def steps(metastore_url: str, tmp_storage: str) -> Steps:
    return job_with_history(metastore_url, tmp_storage)


def counts(job: Steps) -> dict[str, int]:
    """Returns how many rows there are, by table."""
    return {
        table: int(job.sql(f"SELECT count(*) FROM cairn.{table}")[0][0])  # noqa: S608
        for table in TABLES
    }


def test_what_is_older_than_the_retention_is_trimmed_and_what_is_needed_stays(
    steps: Steps,
) -> None:
    let_time_pass(steps.url, steps.job_id, "6 days")
    assert cleanup_job(steps.catalog, steps.name).trimmed_checkpoints == 0
    let_time_pass(steps.url, steps.job_id, "2 days")
    retained = sorted(steps.statuses())[-3:]
    state = {checkpoint_id: steps.segments(checkpoint_id) for checkpoint_id in retained}
    report = cleanup_job(steps.catalog, steps.name)
    assert report.trimmed_checkpoints == TRIMMED_CHECKPOINTS
    assert set(steps.statuses()) == {retained[0] - 1, *retained}
    assert {i: steps.segments(i) for i in retained} == state
    found = counts(steps)
    # Of the checkpoints, and the newest base.
    assert found["physical_files"] == 4 + 1
    assert found["group_commits"] == 4
    assert found["placed_segments"] == 1
    assert found["deletions"] == 0
    assert found["maintenance_runs"] == 0
    assert found["materializations"] == 1
    assert found["runs"] == 2
    continue_with(steps)
    assert cleanup_job(steps.catalog, steps.name).trimmed_checkpoints == 0


def test_every_total_is_the_same_before_and_after_a_trim(steps: Steps) -> None:
    let_time_pass(steps.url, steps.job_id, "8 days")
    continue_with(steps)
    before, rows = totals(steps), counts(steps)
    assert trim_history_of(steps) > 40
    assert totals(steps) == before
    assert sum(counts(steps).values()) < sum(rows.values()) - 40
    assert row(steps, "SELECT to_jsonb(v) FROM cairn.v_native_comparison AS v")["batches"] == 17


def test_the_days_of_history_say_what_was_made(steps: Steps) -> None:
    let_time_pass(steps.url, steps.job_id, "8 days")
    trim_history_of(steps)
    # Of one day, or of two if it is midnight.
    days: Counter[str] = Counter()
    for (numbers,) in steps.sql("SELECT to_jsonb(v) FROM cairn.v_history_by_day AS v"):
        days.update({name: value for name, value in numbers.items() if isinstance(value, int)})
    assert (days["checkpoints"], days["checkpoints_aborted"]) == (17, 1)
    assert (days["group_commits"], days["input_rows"]) == (16, 320)
    assert (days["segments"], days["segment_bytes"]) == (2 * 16 + 3, 100 * (2 * 16 + 3))
    assert (days["materializations"], days["materialized_bytes"]) == (3, 300)
    # Of each batch, each base, the aborted batch, the request that lost, and the group's own.
    assert (days["files"], days["files_sealed"]) == (16 + 3 + 1 + 2, 16 + 3)
    assert days["files_deleted"] == days["trimmed_files"] == TRIMMED_FILES
    assert days["trimmed_checkpoints"] == TRIMMED_CHECKPOINTS


def trim_history_of(job: Steps) -> int:
    """Trims all there is; returns the number of rows."""
    rows = 0
    while step := job.run(lambda c: trim_history(c, job.job_id)).rows:
        rows += step
    return rows


def test_a_dry_run_foretells_what_is_trimmed_and_changes_nothing(steps: Steps) -> None:
    let_time_pass(steps.url, steps.job_id, "8 days")
    before = dump(steps.url)
    forecast = cleanup_job(steps.catalog, steps.name, dry_run=True)
    assert dump(steps.url) == before
    assert (forecast.trimmed_checkpoints, forecast.trimmed_files) == (
        TRIMMED_CHECKPOINTS,
        TRIMMED_FILES,
    )
    assert replace(forecast, dry_run=False) == cleanup_job(steps.catalog, steps.name)


def test_what_is_trimmed_is_refused_as_before(steps: Steps) -> None:
    batch = steps.ref(2, 5)
    [(old,)] = steps.sql(
        "SELECT checkpoint_id FROM cairn.checkpoints WHERE job_id = :job AND batch_id = 5"
    )
    acks, file = steps.group(batch, old, [0, 1])
    last = newest(steps)
    let_time_pass(steps.url, steps.job_id, "8 days")
    steps.clean()
    let_time_pass(steps.url, steps.job_id, "8 days")
    steps.clean()
    assert old not in steps.statuses()
    with pytest.raises(RefusedError, match=r"begins batch 5, but batch 14 .* already committed"):
        steps.begin(batch)
    with pytest.raises(FencedError, match="ended so long ago that its row was trimmed"):
        steps.commit(batch, old, acks, file)
    with pytest.raises(FencedError, match="run 1 was replaced"):
        steps.begin(steps.ref(1, 3))
    # Its file was never sealed, was deleted, and is trimmed.
    assert (
        steps.sql("SELECT 1 FROM cairn.physical_files WHERE file_id = :id", id=file.file_id) == []
    )
    current = steps.ref(2, NEXT_BATCH)
    checkpoint_id = steps.begin(current).checkpoint_id
    assert checkpoint_id > last
    with pytest.raises(FencedError, match="deleted so long ago that its row was trimmed"):
        steps.run(
            lambda c: acknowledge(
                c, current, checkpoint_id=checkpoint_id, tm_id="tm", acks=acks, files={"": file}
            )
        )
    with pytest.raises(RefusedError, match="does not exist"):
        steps.run(lambda c: describe_checkpoint(c, steps.job_id, old))


def test_a_pinned_checkpoint_keeps_its_rows_and_goes_once_it_is_unpinned(steps: Steps) -> None:
    pinned = max(i for i, status in steps.statuses().items() if status == "CONFIRMED")
    state = steps.segments(pinned)
    steps.sql(
        "INSERT INTO cairn.pins (pin_id, job_id, checkpoint_id, kind)"
        " VALUES (gen_random_uuid(), :job, :id, 'pin')",
        id=pinned,
    )
    for batch_id in range(16, 20):
        checkpoint_id = continue_with(steps, batch_id)
    materialize(steps, 2, 19, as_of=checkpoint_id - 1)
    for batch_id in range(20, 23):
        continue_with(steps, batch_id)
    last = newest(steps)
    for _ in range(2):
        let_time_pass(steps.url, steps.job_id, "8 days")
        steps.clean()
    assert steps.statuses()[pinned] == "CONFIRMED"
    # It needs the changelog of the two before it, and the retained ones that of batch 19.
    assert sorted(steps.statuses()) == [pinned - 2, pinned - 1, pinned, *range(last - 3, last + 1)]
    assert steps.segments(pinned) == state
    steps.sql("UPDATE cairn.pins SET removed_at = now() WHERE job_id = :job")
    for _ in range(2):
        assert pinned in steps.statuses()
        steps.clean()
        let_time_pass(steps.url, steps.job_id, "8 days")
    steps.clean()
    assert pinned not in steps.statuses()
    assert counts(steps)["pins"] == 0


def test_a_pin_that_was_removed_lately_keeps_its_row_and_its_checkpoints(steps: Steps) -> None:
    old = min(steps.statuses())
    # As if it had been pinned while it was CONFIRMED.
    steps.sql(
        "SET LOCAL session_replication_role = replica;"
        " INSERT INTO cairn.pins (pin_id, job_id, checkpoint_id, kind, removed_at)"
        " VALUES (gen_random_uuid(), :job, :id, 'pin', now() + interval '7 days')",
        id=old,
    )
    let_time_pass(steps.url, steps.job_id, "8 days")
    trim_history_of(steps)
    assert old in steps.statuses()
    assert counts(steps)["pins"] == 1
    let_time_pass(steps.url, steps.job_id, "8 days")
    trim_history_of(steps)
    assert old not in steps.statuses()
    assert counts(steps)["pins"] == 0


def test_the_newest_checkpoints_stay_by_their_number_however_new(
    metastore_url: str, tmp_storage: str
) -> None:
    job = Steps(metastore_url, tmp_storage)
    epoch = job.register(history_max_checkpoints=1000)
    job.whole_batch(epoch, 0)
    # Ten seconds each, and the newest has ended two hours ago.
    job.sql(
        "INSERT INTO cairn.checkpoints (job_id, checkpoint_id, epoch, query_id, batch_id,"
        " parallelism, began_at) SELECT :job, 1 + n, :epoch, 'q', n, 2,"
        " now() - interval '2 hours' - (1500 - n) * interval '10 s'"
        " FROM generate_series(1, 1500) n",
        epoch=epoch,
    )
    for status in ("COMPLETED", "CONFIRMED", "SUBSUMED"):
        job.sql(
            "SET LOCAL session_replication_role = replica;"  # although they are the newest
            "UPDATE cairn.checkpoints SET status = :status, ended_at = began_at + interval '5 s'"
            " WHERE job_id = :job AND checkpoint_id BETWEEN 2 AND 1501",
            status=status,
        )
    job.sql("UPDATE cairn.jobs SET next_checkpoint_id = 1502 WHERE job_id = :job")
    assert trim_history_of(job) == 0, "no newer one is confirmed"
    job.whole_batch(epoch, 1501)
    job.whole_batch(epoch, 1502)
    trim_history_of(job)
    # 1504 is the next one, so 504 to 1503 are the newest thousand; 1 has not ended.
    assert sorted(job.statuses()) == [1, *range(504, 1504)]


def test_history_of_the_last_hour_stays_however_little_is_kept(
    metastore_url: str, tmp_storage: str
) -> None:
    job = Steps(metastore_url, tmp_storage)
    epoch = job.register(history_max_checkpoints=1000)
    for batch_id in range(5):
        job.whole_batch(epoch, batch_id)
    materialize(job, epoch, 4, as_of=4)
    for batch_id in range(5, 8):
        job.whole_batch(epoch, batch_id)
    job.clean()
    # As if the newest were a thousand checkpoints on.
    job.sql("UPDATE cairn.jobs SET next_checkpoint_id = next_checkpoint_id + 999")
    let_time_pass(job.url, job.job_id, "59 min")
    job.sql("UPDATE cairn.checkpoints SET began_at = now() WHERE checkpoint_id = 8")
    assert trim_history_of(job) == 0
    let_time_pass(job.url, job.job_id, "2 min")
    assert trim_history_of(job) > 0


def test_what_is_left_of_older_runs_goes_with_the_last_of_their_checkpoints(steps: Steps) -> None:
    for epoch in (1, 2):
        steps.sql(
            "INSERT INTO cairn.upload_totals VALUES (:job, :epoch, 'tm', 1, 1, 1, 1, 1, 1, 1, 1)",
            epoch=epoch,
        )
        steps.sql(
            "INSERT INTO cairn.directories (job_id, path, scope, tm_id, epoch, deleted_at)"
            " VALUES (:job, :job || '/taskmanager-owned/tm' || :epoch, 'taskmanager', 'tm', :epoch,"
            " now())",
            epoch=epoch,
        )
    for status in ("UNCLAIMED", "DELETED"):
        steps.sql(
            "UPDATE cairn.directories SET status = :status WHERE path ~ '/tm1$'", status=status
        )
    assert trim_history_of(steps) == 0
    let_time_pass(steps.url, steps.job_id, "8 days")
    trim_history_of(steps)
    assert steps.sql("SELECT epoch FROM cairn.upload_totals") == [(2,)]
    paths = {path.rpartition("/")[2] for (path,) in steps.sql("SELECT path FROM cairn.directories")}
    assert "tm1" not in paths
    assert "tm2" in paths
    assert counts(steps)["runs"] == 2


def test_a_job_that_only_aborted_checkpoints_is_not_taken_for_a_new_one(
    metastore_url: str, tmp_storage: str
) -> None:
    job = Steps(metastore_url, tmp_storage)
    job.begin(job.ref(job.register(), 0))
    job.begin(job.ref(job.register(), 0))
    let_time_pass(job.url, job.job_id, "1 year")
    assert trim_history_of(job) == 0
    assert len(job.statuses()) == 2
