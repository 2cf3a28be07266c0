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
what is not folded yet. It holds a lease, which a killed task loses after a minute: until then its
retry fails, says so, and is tried again.

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
One `materialize.plan`, `materialize.approve` and `materialize.apply` a job, named after it. The
return value of `plan` has the plan's id, for `cairn runs`; that of `apply`, and its last log line,
are the report. `refused` subtasks were materialized by somebody else meanwhile: that is no failure.
A plan deletes nothing, so `approve` has nobody to ask, unless a circuit breaker speaks.
`summarise` returns the sums. `cairn materialize JOB --dry-run` shows what the next run would do.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from cairn.airflow_ext.dags import FIRST_DAY, TAGS, dry_run_param, job_param, task_defaults
from cairn.airflow_ext.maintenance import jobs_to_materialize, params_of_run
from cairn.airflow_ext.preflight import preflight
from cairn.airflow_ext.stages import plan_approve_apply


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
    """Lists the jobs; plans, has approved if need be, and applies for each; adds up the results."""

    @task
    def list_jobs() -> list[str]:
        return jobs_to_materialize(params_of_run()["job"])

    jobs = list_jobs()
    preflight() >> jobs
    plan_approve_apply("materialize", "materialization", jobs)


materialization()
