"""What planning and deleting cost, each in a process of its own for its memory."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection, text

from benchmarks.apart import run_apart
from benchmarks.maintenance_shape import Figure, Place, Sizes, memory_figure
from benchmarks.metastore_calls import CatalogCalls
from benchmarks.metastore_shape import History, JobRef
from benchmarks.stub_s3 import StubS3, stub_s3
from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.snapshot import read_snapshot
from cairn.maintenance.breakers import RATE_VARIABLE
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.deleter import Deleted, delete_condemned
from cairn.maintenance.storages import open_allowed
from cairn.maintenance.subsumption import plan_subsumption

DELETES_PER_S = 3_000
MOST_GROWTH = 2.0

# As before a cleanup: the newest of the batches before the bases are not subsumed, so their files
# are what there is to plan.
_NOT_CLEANED = (
    "SET LOCAL session_replication_role = replica",
    "SET LOCAL statement_timeout = 0",
    """
    UPDATE cairn.checkpoints SET status = 'CONFIRMED', ended_at = NULL
    WHERE job_id = :job AND checkpoint_id > :first AND checkpoint_id <= :dead
    """,
    """
    UPDATE cairn.group_commits SET status = 'LIVE'
    WHERE job_id = :job AND checkpoint_id > :first AND checkpoint_id <= :dead
    """,
    """
    UPDATE cairn.physical_files AS f
    SET status = 'SEALED', live_segments = cardinality(g.segment_ids), live_bytes = f.size_bytes,
        condemned_at = NULL, deleted_at = NULL
    FROM cairn.group_commits AS g
    WHERE g.job_id = :job AND g.checkpoint_id > :first AND g.checkpoint_id <= :dead
      AND f.file_id = g.file_id
    """,
    "DELETE FROM cairn.deletions AS d USING cairn.physical_files AS f"
    " WHERE f.file_id = d.file_id AND f.job_id = :job AND f.status = 'SEALED'",
)

_CONDEMNED = (
    "SET LOCAL session_replication_role = replica",
    "SET LOCAL statement_timeout = 0",
    """
    INSERT INTO cairn.maintenance_runs (
        maintenance_run_id, job_id, action, plan, plan_sha256, status, finished_at
    )
    SELECT CAST(md5(:job) AS uuid), :job, 'subsumption', '{}', '', 'APPLIED', now()
    """,
    """
    INSERT INTO cairn.physical_files (
        file_id, job_id, epoch, path, scope, status, size_bytes, sealed_at, condemned_at
    )
    SELECT f.id, :job, 1, :job || '/taskmanager-owned/1-0123456789ab/' || f.id || '.seg',
        'taskmanager', 'CONDEMNED', 4000, now(), now()
    FROM (SELECT CAST(md5(CAST(n AS text)) AS uuid) AS id FROM generate_series(1, :files) AS n) f
    """,
    """
    INSERT INTO cairn.deletions (file_id, job_id, path, maintenance_run_id, requested_at)
    SELECT file_id, job_id, path, CAST(md5(:job) AS uuid), now() - INTERVAL '1 day'
    FROM cairn.physical_files
    WHERE job_id = :job
    """,
)


def measure_planning(place: Place) -> list[Figure]:
    """Returns how long a plan takes beside few and beside many live segments."""
    figures: list[Figure] = []
    medians_ms: list[float] = []
    sizes = place.sizes
    with stub_s3() as s3:
        allow(s3.url)
        for live in sizes.live_segments:
            job = _job_with(place.url, s3.url, sizes, live)
            planned = run_apart(_plan, place.url, job.name, sizes.repetitions)
            forecast = run_apart(_forecast, place.url, job.name, sizes.repetitions)
            plan_ms, condemned = planned.found
            medians_ms.append(plan_ms)
            name = f"{live:,} live segments"
            figures += [
                Figure(workload="planning", name=f"{name}: plan", value=plan_ms, unit="ms"),
                Figure(
                    workload="planning", name=f"{name}: dry run", value=forecast.found, unit="ms"
                ),
                Figure(
                    workload="planning", name=f"{name}: files planned", value=condemned, unit=""
                ),
                memory_figure("planning", name, planned.memory_mb),
            ]
    growth = Figure(
        workload="planning",
        name="most over fewest",
        value=medians_ms[-1] / medians_ms[0],
        unit="times",
        wanted=MOST_GROWTH,
        at_least=False,
    )
    return [*figures, growth]


def measure_deletes(place: Place) -> list[Figure]:
    """Returns how many objects the deleter deletes a second, each with its intent."""
    sizes = place.sizes
    with stub_s3() as s3:
        allow(s3.url)
        job = _job_to_delete(place.url, s3, sizes)
        before = s3.counts()
        s3.slow_down(sizes.delay_ms)
        done = run_apart(_delete, place.url, job.name)
        after = s3.counts()
    spent = {name: after[name] - before[name] for name in after}
    seconds, deleted = done.found
    if (deleted.files, -spent["objects"]) != (sizes.deleted_files, sizes.deleted_files):
        raise RuntimeError(f"{deleted} of {sizes.deleted_files} files; objects: {spent}")
    return [
        Figure(
            workload="deletes",
            name=f"{sizes.deleted_files:,} files",
            value=deleted.files / seconds,
            unit="deletes/s",
            wanted=DELETES_PER_S,
        ),
        Figure(workload="deletes", name="requests", value=spent["requests"], unit=""),
        Figure(
            workload="deletes",
            name="bytes read for a byte freed",
            value=spent["read_bytes"] / deleted.size_bytes,
            unit="",
        ),
        memory_figure("deletes", f"{sizes.deleted_files:,} files", done.memory_mb),
    ]


def _job_to_delete(url: str, s3: StubS3, sizes: Sizes) -> JobRef:
    """Returns a job of which all files are condemned, with their objects and delete intents."""
    job = CatalogCalls(url).register("deletes", sizes.parallelism, s3.url)
    catalog = Catalog(url, timeout_ms=600_000)
    facts = {"job": job.job_id, "files": sizes.deleted_files}
    catalog.run("condemning files", partial(_execute, statements=_CONDEMNED, facts=facts))
    _analyze(catalog)
    statement = text("SELECT path FROM cairn.physical_files WHERE job_id = :job")
    paths = catalog.run("listing them", lambda c: list(c.scalars(statement, {"job": job.job_id})))
    s3.fill(paths, 4_000)
    return job


def _job_with(url: str, storage: str, sizes: Sizes, live_segments: int) -> JobRef:
    """Returns a job with live changelog segments, and some batches whose files can be deleted."""
    calls = CatalogCalls(url)
    job = calls.register(f"live-{live_segments}", sizes.parallelism, storage)
    history = History(
        dead_batches=2 * sizes.dead_batches,
        live_batches=live_segments // sizes.parallelism,
        groups=sizes.groups,
    )
    catalog = Catalog(url, timeout_ms=3_600_000)
    with catalog.begin() as connection:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        calls.fill(job, history)
    facts = {"job": job.job_id, "first": sizes.dead_batches, "dead": history.dead_batches}
    catalog.run("taking a cleanup back", partial(_execute, statements=_NOT_CLEANED, facts=facts))
    _analyze(catalog)
    return job


def _analyze(catalog: Catalog) -> None:
    catalog.run("analyzing", lambda c: c.execute(text("ANALYZE")))


def _execute(connection: Connection, statements: tuple[str, ...], facts: dict[str, object]) -> None:
    for sql in statements:
        statement = text(sql)
        used = statement.compile().params.keys()
        connection.execute(statement, {name: facts[name] for name in used})


def _plan(url: str, name: str, repetitions: int) -> tuple[float, int]:
    catalog = Catalog(url)
    plan = None

    def once() -> None:
        nonlocal plan
        plan = plan_subsumption(catalog.run("reading", lambda c: read_snapshot(c, name)))

    median_ms = _median_ms(once, repetitions)
    return median_ms, len(plan.condemned_files) if plan else 0


def _forecast(url: str, name: str, repetitions: int) -> float:
    catalog = Catalog(url)
    return _median_ms(lambda: cleanup_job(catalog, name, dry_run=True), repetitions)


def _median_ms(work: Callable[[], object], repetitions: int) -> float:
    work()  # connects, and reads what was just written
    times = []
    for _ in range(repetitions):
        began_s = time.monotonic()
        work()
        times.append(1000 * (time.monotonic() - began_s))
    return statistics.median(times)


def _delete(url: str, name: str) -> tuple[float, Deleted]:
    catalog = Catalog(url)
    job = catalog.run("reading", lambda c: read_snapshot(c, name)).job
    store = open_allowed(job)
    began_s = time.monotonic()
    deleted = delete_condemned(catalog, job, store)
    return time.monotonic() - began_s, deleted


def allow(*storages: str) -> None:
    """Lets this process and those that it starts delete below storages, at any pace."""
    os.environ["CAIRN_STORAGES"] = " ".join(storages)
    os.environ[RATE_VARIABLE] = "1000000"
