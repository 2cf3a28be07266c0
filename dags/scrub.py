"""Reads what a job's checkpoints need, and says which bytes are damaged, before a restore does.

For each job: a share of the bytes of live segments is read and compared with the SHA-256 that was
recorded for them, those first that were read longest ago. Pinned checkpoints and manifests are
among them. With the default of 4 % and a run each day, each byte is read once in 25 days.

What is missing, too short or has other bytes is recorded in `cairn.damaged_segments`. The view
`cairn.v_damaged_segments` has every checkpoint and manifest that needs it, and whether it can be
made again from older bases and changelog. Then the same task does that: it folds these into new
bases, which checkpoints to come read instead. What older ones and their manifests need stays
damaged until they are subsumed. `cairn checkpoints` and the metric
`Storage.damagedSegments` count it. While something is damaged, the newest confirmed checkpoint that
needs nothing of it stays, as if it was pinned. What is read whole again by a later run is not shown
any more.

**It never** changes or deletes an object, and holds a lock that a batch waits for no longer than
the batches themselves. It may run at any time, beside the jobs and the cleanup, twice at once, and
again after a crash.

## Before the first run
* The workers' environment has `CAIRN_METASTORE`, `CAIRN_STORAGES` and what the storage needs, and
  the pool `cairn_maintenance` exists, as for the Dag `subsumption_cleanup`.

## Trigger form
| field | meaning |
|---|---|
| job | one job's name; empty: all jobs |
| sample percent | the share of the live bytes that is read |
| whole | read all of it, whatever the share is |
| max bytes per s | of one job; empty: no limit |
| dry run | report what would be read, and read nothing |

A run that is given any other param fails and changes nothing.

## Reading the result
One `scrub.plan`, `scrub.approve` and `scrub.apply` a job, named after it. The return value of
`plan` has the plan's id, for `cairn runs`; that of `apply`, and its last log line, are the report.
A scrub deletes nothing, so `approve` has nobody to ask, unless a circuit breaker speaks. **An
`apply` that fails at once, without a retry, has found damage**, now or earlier, or was refused: the
log says which, and what was healed. `newest_whole_checkpoint` is where there is a way back to.
`summarise` returns the sums.

Next: `cairn scrub JOB --dry-run` lists the damage, `cairn heal JOB --dry-run` says what is lost.
Put the objects back, for example older versions of the bucket's, and trigger this Dag again. Then
find out what the storage does with objects.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, dag, task

from cairn.airflow_ext.dags import FIRST_DAY, TAGS, dry_run_param, job_param, task_defaults
from cairn.airflow_ext.maintenance import jobs_to_maintain, params_of_run
from cairn.airflow_ext.preflight import PATIENT_WAIT, preflight
from cairn.airflow_ext.stages import plan_approve_apply


@dag(
    dag_id="scrub",
    dag_display_name="Cairn: scrub",
    doc_md=__doc__,
    schedule="23 3 * * *",
    start_date=FIRST_DAY,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=23),
    tags=TAGS,
    default_args=task_defaults(timedelta(hours=20)),
    params={
        "job": job_param("Name of the one job to scrub. Empty: **all** jobs of the metastore."),
        "sample_percent": Param(
            4.0,
            type="number",
            exclusiveMinimum=0,
            maximum=100,
            title="Sample percent",
            description_md="Share of the live bytes to read, those first that were read longest "
            "ago.",
        ),
        "whole": Param(
            False,
            type="boolean",
            title="Whole",
            description_md="Read **all** live bytes, whatever the share is.",
        ),
        "max_bytes_per_s": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Max bytes per s",
            description_md="Read at most so many bytes a second of a job. Empty: no limit.",
        ),
        "dry_run": dry_run_param("Report what would be read and read **nothing**."),
    },
)
def scrub() -> None:
    """Lists the jobs; plans, has approved if need be, and applies for each; adds up the results."""

    @task
    def list_jobs() -> list[str]:
        return jobs_to_maintain(params_of_run()["job"])

    jobs = list_jobs()
    preflight(PATIENT_WAIT) >> jobs
    plan_approve_apply("scrub", "scrub", jobs)


scrub()
