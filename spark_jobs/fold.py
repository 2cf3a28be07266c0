"""Folds the changelogs of one job into bases, as a Spark batch job: one task for each subtask.

For states that one process would take too long for; `cairn materialize` does the same in one. The
driver holds the lease of the maintenance run. Its tasks write under that lease, so those of a
driver that has died change nothing any more; of two attempts of a task, the first to install
counts.

    spark-submit spark_jobs/fold.py JOB

The driver and the executors have `CAIRN_METASTORE` and `CAIRN_STORAGES` in their environment, see
`spark.executorEnv.*`, and room for temporary files.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import asdict

from pyspark.sql import SparkSession

from cairn.catalog.catalog import Catalog, find_catalog
from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.catalog.maintenance.folds import Share
from cairn.catalog.maintenance.leased_files import LeaseRef
from cairn.catalog.maintenance.leases import finish
from cairn.maintenance.fold import FoldReport, fold_shares
from cairn.maintenance.fold_plan import of_json
from cairn.maintenance.held_lease import held_lease
from cairn.maintenance.materialization import open_owned, plan_folds
from cairn.maintenance.plans import store
from metastore.enums import MaintenanceStatus

_log = logging.getLogger(__name__)


def fold_on_spark(spark: SparkSession, catalog: Catalog, job_name: str) -> FoldReport:
    """Plans the folds of a job that are due, and does each in a Spark task; returns their sums.

    Raises:
        BadInputError, RefusedError, StoreFailedError: see `plan_folds`.
        FencedError: the lease was lost.
        PySparkException: a task has failed; what others have folded stays. Start it again.
    """
    plan = plan_folds(catalog, job_name)
    if plan.is_empty:
        return FoldReport()
    run_id, job = store(catalog, plan).run_id, plan.job
    # The largest first: the last one to begin is not the longest.
    due = sorted(of_json(plan.content), key=lambda one: -one.size_bytes)
    with held_lease(catalog, job.job_id, run_id) as lease:
        shares = spark.sparkContext.parallelize([one.share for one in due], len(due))
        reports = shares.map(lambda share: _fold(catalog, job, lease, share)).collect()
        total = sum(reports, FoldReport())
        catalog.run(
            "finishing a materialization",
            lambda c: finish(c, run_id, lease.holder, MaintenanceStatus.APPLIED, asdict(total)),
        )
    return total


def _fold(catalog: Catalog, job: JobFacts, lease: LeaseRef, share: Share) -> FoldReport:
    return fold_shares(catalog, job, open_owned(catalog, job), lease, [share])


def main(argv: Sequence[str] | None = None) -> None:
    """Folds the job that the command line names."""
    parser = argparse.ArgumentParser(description="Folds the changelogs of a job into bases.")
    parser.add_argument("job", metavar="JOB", help="the job's name")
    parser.add_argument("--metastore", help="postgresql://…; else CAIRN_METASTORE")
    arguments = parser.parse_args(argv)
    spark = SparkSession.builder.appName(f"cairn fold {arguments.job}").getOrCreate()
    report = fold_on_spark(spark, find_catalog(arguments.metastore), arguments.job)
    print(report)


if __name__ == "__main__":
    main()
