"""Finds what lies in storage and nothing keeps, sets it aside, and deletes it a week later.

For each job, all below its root is listed and compared with the metastore. An orphan is an object
without a row, one that appeared after its row was DELETED, an unfinished write, or an unfinished
multipart upload. It becomes a row of `cairn.quarantined_objects`, and stays where it is. Those that
were set aside `quarantine days` ago by an earlier run are deleted now, if they are the same objects
still and nobody took them out. Directories that are empty and nobody's are removed.

**It never** touches what is younger than 24 hours, has a row that is not DELETED, or has a name
that nothing of Cairn's has; the owner object of a root; a root of another metastore; or what lay
there before this metastore took the root over, unless somebody has confirmed that it may go
(`cairn sweep JOB --confirm`). If the clocks of the storage and the database differ by more than 5
minutes, it changes nothing. Nothing is deleted without a row that was committed before.

It may run at any time, beside the jobs and the cleanup, twice at once, and again after a crash.
Weekly, because it lists every object.

## Before the first run
* The workers' environment has `CAIRN_METASTORE`, `CAIRN_STORAGES` and what the storage needs, and
  the pool `cairn_maintenance` exists, as for the Dag `subsumption_cleanup`.

## Trigger form
| field | meaning |
|---|---|
| job | one job's name; empty: all jobs |
| quarantine days | how long what is found now is kept |
| dry run | report what would be set aside and deleted, and change nothing |

A run that is given any other param fails and changes nothing.

## Reading the result
One `sweep.plan`, `sweep.approve` and `sweep.apply` a job, named after it. The return value of
`plan` has the plan's id, for `cairn runs` and `cairn apply`, and in `found` what would be done:
`kept` counts by reason what stays. `apply` lists the root again, and does no more than was planned:
what has become old enough since waits for the next run. Its return value and last log line are the
report; `unknown` names some of what has a strange name.
`failed_deletes` above 0 fails the task, which is retried. **A task that fails at once, without a
retry, was refused**: the log says what was found and what to do. `summarise` returns the sums.

## When a circuit breaker speaks
Because most of a root would go, or little of it has rows. Then nothing of that job is set aside or
deleted until a person approves it: under *Required Actions*, within 30 minutes, or from a shell
with the command that is shown there. Without an answer `apply` is skipped, and the next run asks
again.

Next: `cairn quarantine list JOB` shows what is set aside and until when;
`cairn quarantine restore JOB PATH` takes it out, for good.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, dag, task

from cairn.airflow_ext.dags import FIRST_DAY, TAGS, dry_run_param, job_param, task_defaults
from cairn.airflow_ext.maintenance import jobs_to_maintain, params_of_run
from cairn.airflow_ext.preflight import PATIENT_WAIT, preflight
from cairn.airflow_ext.stages import plan_approve_apply


@dag(
    dag_id="orphan_sweep",
    dag_display_name="Cairn: orphan sweep",
    doc_md=__doc__,
    schedule="41 4 * * 0",
    start_date=FIRST_DAY,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=23),
    tags=TAGS,
    default_args=task_defaults(timedelta(hours=20)),
    params={
        "job": job_param("Name of the one job to sweep. Empty: **all** jobs of the metastore."),
        "quarantine_days": Param(
            7,
            type="integer",
            minimum=1,
            maximum=3650,
            title="Quarantine days",
            description_md="How long what is found now is kept before a later run deletes it.",
        ),
        "dry_run": dry_run_param(
            "Report what would be set aside and deleted, and change **nothing**."
        ),
    },
)
def orphan_sweep() -> None:
    """Lists the jobs; plans, has approved if need be, and applies for each; adds up the results."""

    @task
    def list_jobs() -> list[str]:
        return jobs_to_maintain(params_of_run()["job"])

    jobs = list_jobs()
    preflight(PATIENT_WAIT) >> jobs
    plan_approve_apply("sweep", "orphan_sweep", jobs)


orphan_sweep()
