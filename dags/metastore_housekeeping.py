"""Keeps the metastore small: rows that nothing needs any more leave it, by each job's policy.

For each job: pins whose time is over (`cairn pin --expires`) are removed, runs that a newer run has
replaced are closed, and rows of what ended before `cairn.history-retention`, or beyond
`cairn.history-max-checkpoints`, leave the metastore; sums by day stay in `cairn.v_history_by_day`.
The Dag `subsumption_cleanup` trims history, too, but a bounded number of rows in each run: where
there is much, such as after the policy was changed or the cleanup did not run for days, this Dag
does it.

**It never** touches an object in storage, a row that a retained or pinned checkpoint needs, or one
of the last hour: triggers refuse that. A checkpoint whose last pin has expired is subsumed by the
next cleanup, and not here.

It works in transactions of 1,000 checkpoints and 1,000 files, and takes no lock that a batch waits
for, but for the moment in which pins are removed. It may run at any time, twice at once, and again
after a crash: it continues where the last one stopped.

## Before the first run
* The workers' environment has `CAIRN_METASTORE`, and the pool `cairn_maintenance` exists, as for
  the Dag `subsumption_cleanup`.

## Trigger form
| field | meaning |
|---|---|
| job | one job's name; empty: all jobs |
| dry run | report what would be removed, and change nothing |

A run that is given any other param fails and changes nothing.

## Reading the result
One `housekeep.plan`, `housekeep.approve` and `housekeep.apply` a job, named after it. The return
value of `plan` has the plan's id, for `cairn runs`, and what was there to do in `found`; that of
`apply`, and its last log line, are the report. A plan deletes no object, so `approve` has nobody to
ask, unless a circuit breaker speaks. `summarise` returns the sums.

Next: `cairn housekeeping --dry-run` shows what the next run would do.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from cairn.airflow_ext.dags import FIRST_DAY, TAGS, dry_run_param, job_param, task_defaults
from cairn.airflow_ext.maintenance import jobs_to_maintain, params_of_run
from cairn.airflow_ext.preflight import preflight
from cairn.airflow_ext.stages import plan_approve_apply


@dag(
    dag_id="metastore_housekeeping",
    dag_display_name="Cairn: metastore housekeeping",
    doc_md=__doc__,
    schedule="17 * * * *",
    start_date=FIRST_DAY,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=12),
    tags=TAGS,
    default_args=task_defaults(timedelta(hours=2)),
    params={
        "job": job_param("Name of the one job. Empty: **all** jobs of the metastore."),
        "dry_run": dry_run_param("Report what would be removed and change **nothing**."),
    },
)
def metastore_housekeeping() -> None:
    """Lists the jobs; plans, has approved if need be, and applies for each; adds up the results."""

    @task
    def list_jobs() -> list[str]:
        return jobs_to_maintain(params_of_run()["job"])

    jobs = list_jobs()
    preflight() >> jobs
    plan_approve_apply("housekeep", "housekeeping", jobs)


metastore_housekeeping()
