"""Frees what no checkpoint of a job needs any more.

For each job: checkpoints older than the newest `cairn.num-retained` and not pinned become SUBSUMED,
segments that only those needed die, and files without a live segment are condemned. Files that were
condemned `cairn.file-retention` ago, by default an hour, are deleted from storage: until then a
metastore that is restored from a backup finds them. Rows of what ended before
`cairn.history-retention` leave the metastore; sums by day stay in `cairn.v_history_by_day`.

**It never** touches one of the newest retained checkpoints, a pinned one or one in progress, a
segment that such a checkpoint or the next one needs, a file that a running job may still be
writing, or an object outside the job's own directory. Nothing is deleted without a row in
`cairn.deletions` that was committed before. It does not find orphans, objects that the metastore
does not know: the Dag `orphan_sweep` does.

It may run at any time, beside the jobs, twice at once, and again after a crash: it continues
where the last one stopped. Every 10 minutes, because a round is a few short queries a job, and
because what waits for deletion is then at most 10 minutes of a job's output, besides what waits for
`cairn.file-retention`.

## Before the first run
* The workers' environment has `CAIRN_METASTORE`: `postgresql://user@host:5432/database` or
  `embedded:<directory>`, and what the storage needs, such as AWS credentials.
* It has `CAIRN_STORAGES`, too: the storages that may be cleaned, such as `s3://bucket/state`, or
  directories above them, separated by spaces. A job whose storage is not below one fails at once.
* The pool exists: `airflow pools set cairn_maintenance 4 "Cairn maintenance"`. Without it
  `preflight` fails after 5 minutes, and says so. Its slots are the number of jobs cleaned at once.

## When a circuit breaker speaks
A plan that would leave nothing of a job's state, that deletes more than `CAIRN_MAX_DELETED_SIZE`
in an hour (1 TiB) or more than `CAIRN_MAX_DELETED_SHARE` of the files, or that was made by a clock
which went back, is not applied until a person approves it: under *Required Actions*, within 30
minutes, or from a shell with the command that is shown there. Nothing else of that job is deleted
meanwhile; the other jobs are cleaned at once, and the next run begins when the answer is there.
Without an answer `apply` is skipped, the plan stays REFUSED, and the next run asks again. `cairn
runs JOB` says who has passed what.

## Trigger form
| field | meaning |
|---|---|
| job | one job's name; empty: all jobs |
| dry run | report the deletions, and change nothing |

A run that is given any other param fails and changes nothing: a misspelt `job` would mean all jobs.

## Reading the result
One `clean.plan` and `clean.apply` a job, named after it. The return value of `plan` has the plan's
id, for `cairn runs` and `cairn apply`; that of `apply`, and its last log line, are the report. A
backlog that one plan does not hold is planned and applied further by `apply`.
`summarise` returns the sums. `waiting_files` and `waiting_bytes` wait for `cairn.file-retention`,
the first of them until `next_delete_at`. `failed_deletes` above 0 fails the task, which is retried;
the errors are in `cairn.deletions.last_error`. A task that fails at once, without a retry, was
refused: the log says what was found and what to do.

Next: `cairn space JOB` says what the job's bytes are kept by, and `cairn explain OBJECT` why one is
there; `cairn files JOB` shows the remaining files and their space amplification;
`cairn cleanup --dry-run` shows what the next run would do.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from cairn.airflow_ext.dags import FIRST_DAY, TAGS, dry_run_param, job_param, task_defaults
from cairn.airflow_ext.maintenance import jobs_to_maintain, params_of_run
from cairn.airflow_ext.preflight import preflight
from cairn.airflow_ext.stages import plan_approve_apply


@dag(
    dag_id="subsumption_cleanup",
    dag_display_name="Cairn: subsumption cleanup",
    doc_md=__doc__,
    schedule="*/10 * * * *",
    start_date=FIRST_DAY,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=1),
    tags=TAGS,
    default_args=task_defaults(timedelta(minutes=15)),
    params={
        "job": job_param("Name of the one job to clean. Empty: **all** jobs of the metastore."),
        "dry_run": dry_run_param("Report the deletions and change **nothing**."),
    },
)
def subsumption_cleanup() -> None:
    """Lists the jobs; plans, has approved if need be, and applies for each; adds up the results."""

    @task
    def list_jobs() -> list[str]:
        return jobs_to_maintain(params_of_run()["job"])

    jobs = list_jobs()
    preflight() >> jobs
    plan_approve_apply("clean", "subsumption", jobs)


subsumption_cleanup()
