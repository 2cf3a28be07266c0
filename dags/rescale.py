"""Gives a running query another parallelism, and waits until it runs at it.

The driver of the query ends it after the batch under way, builds it again in the same application,
with its state where it is, and the task is done with the first checkpoint at the new parallelism.
No byte is copied. Until then the task is deferred, so it takes no slot of a worker.

**It is refused**, and changes nothing, where

* the query is over, or was not started by `cairn.run`: nobody would do it. Start the query with the
  parallelism that it is to have.
* the job has fewer key groups than that, a number that is fixed; or it has that parallelism.

**It fails**, and the query is back at the parallelism that it had, where it cannot run at the new
one; the log says why. A newer request for the same job, such as by `cairn rescale`, withdraws this
one.

The new parallelism holds over restarts of the query, until its code names another one. A query
without new rows is rescaled with its next batch: a run waits for up to 6 hours, and the request
stays after that.

## Before the first run
* The environment of workers and of the triggerer has `CAIRN_METASTORE`, as for the Dag
  `subsumption_cleanup`, with a login that has the role `cairn_maintainer`.
* A triggerer runs (`airflow triggerer`): without it the task stays deferred.

## Trigger form
| field | meaning |
|---|---|
| job | the job's name; required |
| parallelism | how many subtasks it is to have; required |
| dry run | check that it can be done, and ask nothing |

A run that is given any other param fails and changes nothing.

## Reading the result
The return value of `rescale` and its last log line have the request's `status`, and `checkpoint`,
the first one at the new parallelism. A task that is tried again waits for the same request.

Next: `cairn requests JOB` lists what was asked of the job and by whom, `cairn checkpoints JOB`
shows the batches since.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, dag

from cairn.airflow_ext.dags import FIRST_DAY, TAGS, dry_run_param, task_defaults
from cairn.airflow_ext.requests import Rescale


@dag(
    dag_id="rescale",
    dag_display_name="Cairn: rescale a running query",
    doc_md=__doc__,
    schedule=None,
    start_date=FIRST_DAY,
    catchup=False,
    max_active_runs=16,  # a run waits for the next batch of its job, and others for theirs
    dagrun_timeout=timedelta(hours=7),
    tags=TAGS,
    default_args=task_defaults(timedelta(minutes=15)),
    params={
        "job": Param(
            type="string", minLength=1, title="Job", description_md="Name of the job to rescale."
        ),
        "parallelism": Param(
            type="integer",
            minimum=1,
            maximum=32768,
            title="Parallelism",
            description_md="How many subtasks the job is to have.",
        ),
        "dry_run": dry_run_param("Check that it can be done, and ask **nothing**."),
    },
)
def rescale() -> None:
    """Asks, and waits."""
    Rescale(task_id="rescale")


rescale()
