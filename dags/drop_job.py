"""Deletes a job whose query is over: its objects in storage, then its rows in the metastore.

The first task marks the job: its runs are fenced, and its name is free for another job at once.
From then on its files are condemned, and deleted once that is `cairn.file-retention` ago (an hour
by default), because a metastore that is restored from a backup may need them until then. A run of
this Dag that finds files waiting ends well; the cleanup's next runs delete them, and the rows.
There is no way back after the first task, but a run with *dry run* changes nothing.

**It is refused**, and changes nothing, while

* a run of the job is alive: stop its query. Its driver notes the end within some seconds; if the
  driver was killed, the job can be dropped an hour after its last sign of life. The log says when.
* a checkpoint is pinned: look at `cairn pins JOB`, and remove the pins with `cairn unpin`.

**It never** touches another job, an object outside the job's own directory, or one in it that the
metastore does not know: that keeps the job, and the log says where it is. Jobs that were restored
from this one's manifests have copies of their own. Local state on executors stays: remove the
directory of the job's id below their `cairn.local-dir`.

It may be stopped at any time and run again: the task that deletes names the job by its id, so
another job that has taken the name meanwhile is not touched by a retry.

## Before the first run
* The workers' environment has `CAIRN_METASTORE`, `CAIRN_STORAGES` and what the storage needs, and
  the pool `cairn_maintenance` exists, as for the Dag `subsumption_cleanup`.

## Trigger form
| field | meaning |
|---|---|
| job | the job's name; required |
| dry run | report what there is of the job, and change nothing |

A run that is given any other param fails and changes nothing.

## Reading the result
The return value of `drop` and its last log line are the report: `files`, `size_bytes` and `rows`
are what there was, `is_gone` says that nothing is left, `left_files` wait, the first until
`next_delete_at`. `failed_deletes` above 0 fails the task, which is retried.

Next: `cairn jobs` shows a job that is being deleted as `dropped`, under its id.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from cairn.airflow_ext.dags import FIRST_DAY, TAGS, task_defaults
from cairn.airflow_ext.jobs import drop_by_id, id_to_drop
from cairn.airflow_ext.maintenance import params_of_run
from cairn.airflow_ext.pools import MAINTENANCE_POOL
from cairn.airflow_ext.preflight import PATIENT_WAIT, preflight


@dag(
    dag_id="drop_job",
    dag_display_name="Cairn: drop a job",
    doc_md=__doc__,
    schedule=None,
    start_date=FIRST_DAY,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=12),
    tags=TAGS,
    default_args=task_defaults(timedelta(hours=2)),
    params={
        "job": Param(
            type="string",
            minLength=1,
            title="Job",
            description_md="Name of the job to delete. **There is no way back.**",
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description_md="Report what there is of the job, and change **nothing**.",
        ),
    },
)
def drop_job() -> None:
    """Finds the job's id, then drops the job of that id."""

    @task
    def find() -> dict[str, Any]:
        return id_to_drop(params_of_run()["job"])

    @task(pool=MAINTENANCE_POOL)
    def drop(job: dict[str, Any]) -> dict[str, Any]:
        return drop_by_id(job, dry_run=params_of_run()["dry_run"])

    job = find()
    preflight(PATIENT_WAIT) >> job
    drop(job)  # type: ignore[arg-type]  # an XCom, until it runs


drop_job()
