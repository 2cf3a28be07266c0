"""Compacts the changelogs of streams, so that their executors do not have to.

For each job with `cairn.changelog.periodic-materialize.by` = `maintenance`: subtasks with changelog
whose newest base is older than `cairn.changelog.periodic-materialize.interval`, or on top of whose
bases a restore would read more than 64 MB and a quarter of the bases, are folded. A fold reads
their bases, increments and changelog from storage, merges them by key, and writes new bases, which
count from the next checkpoint on. What they replace is released, and deleted by
`subsumption_cleanup` once no retained checkpoint needs it.

**It never** changes a checkpoint that there is, waits for a batch or makes one wait for longer than
a short transaction, touches local state, or deletes anything. Where the stream itself or another
fold was faster, nothing is changed, and what was written is deleted later.

It may run at any time, beside the streams, twice at once, and again after a crash: a retry folds
what is not folded yet. It holds a lease, which a killed task loses after a minute.

Every 5 minutes, which is half of the default interval. If it does not run for longer than
`cairn.changelog.periodic-materialize.anyway-after`, the streams do it themselves.

## Before the first run
* The workers' environment has `CAIRN_METASTORE`: `postgresql://user@host:5432/database` or
  `embedded:<directory>`, and what the storage needs, such as AWS credentials.
* It has `CAIRN_STORAGES`, too: the storages that may be written, or directories above them,
  separated by spaces.
* The pool exists: `airflow pools set cairn_maintenance 4 "Cairn maintenance"`. A task takes a core,
  up to 300 MB of memory, and as much room for temporary files as the changelog and the largest key
  group of a subtask have.

## Trigger form
| field | meaning |
|---|---|
| job | one job's name, whoever materializes it; empty: all that leave it to the maintenance |
| dry run | report what is due, and change nothing |

A run that is given any other param fails and changes nothing: a misspelt `job` would mean all jobs.

## Reading the result
One `materialize` task a job, named after it; its return value and last log line are the report.
`refused` subtasks were materialized by somebody else meanwhile: that is no failure. `summarise`
returns the sums. `cairn materialize JOB --dry-run` shows what the next run would do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task

from cairn.airflow_ext.dags import FIRST_DAY, TAGS, dry_run_param, job_param, task_defaults
from cairn.airflow_ext.maintenance import params_of_run, total
from cairn.airflow_ext.materialization import jobs_to_materialize, materialize_one
from cairn.airflow_ext.pools import MAINTENANCE_POOL
from cairn.airflow_ext.preflight import preflight


@dag(
    dag_id="materialization",
    dag_display_name="Cairn: materialization",
    doc_md=__doc__,
    schedule="*/5 * * * *",
    start_date=FIRST_DAY,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=3),
    tags=TAGS,
    default_args=task_defaults(timedelta(hours=2)),
    params={
        "job": job_param(
            "Name of the one job to materialize, whoever usually does. Empty: "
            "**all** that leave it to the maintenance."
        ),
        "dry_run": dry_run_param("Report what is due and change **nothing**."),
    },
)
def materialization() -> None:
    """Lists the jobs, materializes each in a mapped task and adds up the results."""

    @task
    def list_jobs() -> list[str]:
        return jobs_to_materialize(params_of_run()["job"])

    @task(pool=MAINTENANCE_POOL, map_index_template="{{ task.op_kwargs['job'] }}")
    def materialize(job: str) -> dict[str, Any]:
        return materialize_one(job, dry_run=params_of_run()["dry_run"])

    @task(trigger_rule="none_failed")
    def summarise(reports: list[dict[str, Any]]) -> dict[str, int]:
        return total(reports)

    jobs = list_jobs()
    preflight() >> jobs
    summarise(materialize.expand(job=jobs))  # type: ignore[arg-type]  # an XCom


materialization()
