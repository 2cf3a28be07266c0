"""The Spark batch job that folds a large state, once on real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cairn.maintenance.fold import FoldReport
from spark_jobs.fold import fold_on_spark
from tests.maintenance.folds import FoldedJob
from tests.runtime.tasks import BIG, read_back, remembered

pytestmark = pytest.mark.spark


def test_each_subtask_is_folded_by_a_spark_task(
    spark: SparkSession, metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    job = FoldedJob(metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=3)
    job.run(4)
    job.make_due()
    report = fold_on_spark(spark, job.catalog, "words")
    assert (report.folded, report.refused) == (3, 0)
    newest = job.run(1)
    assert job.kinds(newest).count("keyed_full") == 3
    assert read_back(job.plan, newest) == remembered(5) | BIG
    assert job.sql("SELECT status FROM cairn.maintenance_runs") == [("APPLIED",)]
    job.sql("UPDATE cairn.jobs SET materialize_interval_ms = 600000")
    assert fold_on_spark(spark, job.catalog, "words") == FoldReport()
