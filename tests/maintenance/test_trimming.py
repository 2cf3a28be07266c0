"""Trimming in steps: killed, twice at once, beside batches, and what a step reads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from cairn.catalog.cleanup import history
from cairn.catalog.cleanup.history import trim_history
from cairn.catalog.job.materializations import Materialized, record_end, record_start
from cairn.maintenance.cleanup import CleanupReport, cleanup_job
from metastore.enums import SegmentKind
from metastore.models import Base
from tests.maintenance.history_job import (
    NEXT_BATCH,
    TRIMMED_CHECKPOINTS,
    TRIMMED_FILES,
    continue_with,
    job_with_history,
    materialize,
    newest,
    totals,
)
from tests.maintenance.synthetic import SyntheticJob
from tests.maintenance.test_cleanup import start_cleanup
from tests.metastore.ageing import let_time_pass
from tests.metastore.steps import Steps

TABLES = [
    table.name
    for table in Base.metadata.sorted_tables
    if "job_id" in table.columns and table.name != "maintenance_runs"
]


@pytest.fixture
def steps(metastore_url: str, tmp_storage: str) -> Steps:
    return job_with_history(metastore_url, tmp_storage)


def test_killed_before_any_commit_the_next_cleanup_trims_the_rest(
    metastore_url: str, tmp_storage: str
) -> None:
    def final(job: SyntheticJob) -> list[Any]:
        return [
            job.execute(f"SELECT count(*) FROM cairn.{table} WHERE job_id = :job")  # noqa: S608
            for table in TABLES
        ] + job.execute(
            "SELECT to_jsonb(h) - 'job_id' FROM cairn.history_days h WHERE job_id = :job"
        )

    expected: list[Any] = []
    killed = 0
    while True:
        job = SyntheticJob(metastore_url, tmp_storage).create()
        cleanup_job(job.catalog, job.name)
        let_time_pass(job.url, job.job_id, "8 days")
        if start_cleanup(job, ("commit", killed + 1)).run():
            break
        killed += 1
        cleanup_job(job.catalog, job.name)
        expected = expected or final(job)
        assert final(job) == expected
    assert final(job) == expected
    assert killed >= 3


def test_two_at_once_trim_each_row_once(steps: Steps) -> None:
    let_time_pass(steps.url, steps.job_id, "8 days")
    before = totals(steps)
    with ThreadPoolExecutor() as threads:
        trimming = [
            threads.submit(partial(cleanup_job, steps.catalog, steps.name)) for _ in range(2)
        ]
        reports: list[CleanupReport] = [one.result() for one in trimming]
    assert sum(report.trimmed_checkpoints for report in reports) == TRIMMED_CHECKPOINTS
    assert sum(report.trimmed_files for report in reports) == TRIMMED_FILES
    assert totals(steps) == before


def test_a_batch_does_not_wait_for_a_trim(steps: Steps) -> None:
    let_time_pass(steps.url, steps.job_id, "8 days")
    with steps.catalog.begin() as connection:
        assert trim_history(connection, steps.job_id).checkpoints == TRIMMED_CHECKPOINTS
        continue_with(steps)
        materialize(steps, 2, NEXT_BATCH, as_of=newest(steps) - 1)


def test_many_rows_are_trimmed_in_steps(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "TRIM_ROWS", 2)
    let_time_pass(steps.url, steps.job_id, "8 days")
    before = totals(steps)
    taken = []
    while (step := steps.run(lambda c: trim_history(c, steps.job_id))).rows:
        taken.append(step.checkpoints)
        assert totals(steps) == before
    assert max(taken) == 2
    assert sum(taken) == TRIMMED_CHECKPOINTS


def test_the_last_materialization_of_each_kind_stays(steps: Steps) -> None:
    batch, failed = steps.ref(2, 15), uuid4()
    steps.run(lambda c: record_start(c, batch, 0, failed))
    steps.run(lambda c: record_end(c, failed, None, "the store said no"))
    increment = Materialized(
        kind=SegmentKind.KEYED_INCREMENT,
        as_of_checkpoint=1,
        segments=1,
        entries=1,
        size_bytes=1,
        base_bytes=1,
    )
    for made in (uuid4(), uuid4()):
        steps.run(partial(record_start, batch=batch, subtask=0, materialization_id=made))
        steps.run(partial(record_end, materialization_id=made, made=increment, error=None))
    running = uuid4()
    steps.run(lambda c: record_start(c, batch, 1, running))
    let_time_pass(steps.url, steps.job_id, "8 days")
    steps.clean()
    kept = steps.sql(
        "SELECT subtask, kind, error FROM cairn.materializations WHERE job_id = :job ORDER BY 1, 2"
    )
    assert kept == [
        (0, "keyed_full", None),
        (0, "keyed_increment", None),
        (0, None, "the store said no"),
        (1, None, None),
    ]


def test_what_a_step_reads_does_not_grow_with_the_history_that_stays(steps: Steps) -> None:
    def pages() -> int:
        def work(connection: Connection) -> int:
            horizon = connection.execute(text("SELECT now() - interval '7 days'")).scalar_one()
            found = 0
            facts = {"job_id": steps.job_id, "horizon": horizon, "most": 1000, "deleted": []}
            for query in (history._CHECKPOINTS, history._FILES):
                explain = text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query.text}")
                used = {name: facts[name] for name in explain.compile().params}
                [(plan,)] = connection.execute(explain, used).all()
                top = plan[0]["Plan"]
                found += top["Shared Hit Blocks"] + top["Shared Read Blocks"]
            return found

        return steps.run(work)

    few = pages()
    steps.sql(
        "INSERT INTO cairn.checkpoints (job_id, checkpoint_id, epoch, query_id, batch_id,"
        " parallelism) SELECT :job, 100 + n, 2, 'q', 100 + n, 2 FROM generate_series(1, 5000) n"
    )
    for status in ("COMPLETED", "CONFIRMED", "SUBSUMED"):
        steps.sql(
            "SET LOCAL session_replication_role = replica;"  # although they are the newest
            "UPDATE cairn.checkpoints SET status = :status, ended_at = now()"
            " WHERE job_id = :job AND checkpoint_id > 100",
            status=status,
        )
    steps.sql("ANALYZE cairn.checkpoints")
    assert pages() <= few + 20
