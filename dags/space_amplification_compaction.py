"""Rewrites what is live of files that are mostly dead.

An object is deleted whole. A file with one live segment stays whole, whatever is dead in it: its
space amplification is its size over its live bytes. For each job, files whose amplification is too
high are found in the metastore, the bases and increments in them are copied into new files, by the
store itself where it can, and the copies count from the job's next checkpoint on. Older checkpoints
keep the old files. Once those are subsumed, the Dag `subsumption_cleanup` deletes the old files.

```
before      [dead dead BASE dead dead dead][dead BASE dead dead]      10 bytes for 2 live ones
copied      the same, and [BASE BASE]                                 12
subsumed    [BASE BASE]                                                2
```

**It never** changes or deletes an object, moves changelog (that is folded, by `materialization`),
rewrites a file that a running query may append to, or takes what a pinned checkpoint needs: a pin
would keep the old bytes beside the new ones. Such files are counted by reason.

It may run at any time, beside the jobs, and again after a crash. The copies of a task that was
killed are deleted by the cleanup, and its retry makes new ones. What the job replaces by itself
while it is copied is left alone.

## Before the first run
* The workers' environment has `CAIRN_METASTORE`, `CAIRN_STORAGES` and what the storage needs, and
  the pool `cairn_maintenance` exists, as for the Dag `subsumption_cleanup`. On S3 the role needs
  `s3:AbortMultipartUpload`, too.

## Trigger form
| field | meaning |
|---|---|
| job | one job's name; empty: all jobs |
| dry run | report the plans, and change nothing |
| start amplification | only jobs with a file above it are compacted |
| stop amplification | then all their files above it are |
| input | at most so many MB of a job are copied; they live twice until the old ones go |
| drain parallelism | empty the directories of the subtasks of an old parallelism instead |

A run that is given any other param fails and changes nothing.

## Reading the result
One `compact.plan`, `compact.approve` and `compact.apply` a job, named after it. The return value of
`plan` has the plan's id, for `cairn runs`, and in `found` the number of `files`, `copied_bytes`,
`freed_bytes` and what is `held` by reason: `open`, `pin`, `changelog` (to fold), `retained` (they
go by themselves). `pointless_because` says why nothing is done although something would be. `apply`
returns `rewritten_files`, `copied_bytes` and `outpaced_files`, which the job replaced meanwhile. A
compaction deletes nothing, so `approve` has nobody to ask, unless a circuit breaker speaks.

Next: `cairn compact JOB --dry-run` shows the files, `cairn files JOB` why each one is kept.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, dag, task

from cairn.airflow_ext.dags import FIRST_DAY, TAGS, dry_run_param, job_param, task_defaults
from cairn.airflow_ext.maintenance import jobs_to_maintain, params_of_run
from cairn.airflow_ext.preflight import preflight
from cairn.airflow_ext.stages import plan_approve_apply


@dag(
    dag_id="space_amplification_compaction",
    dag_display_name="Cairn: space amplification compaction",
    doc_md=__doc__,
    schedule="35 * * * *",
    start_date=FIRST_DAY,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=6),
    tags=TAGS,
    default_args=task_defaults(timedelta(minutes=45), retry_delay=timedelta(seconds=90)),
    params={
        "job": job_param("Name of the one job to compact. Empty: **all** jobs of the metastore."),
        "dry_run": dry_run_param("Report the plans and change **nothing**."),
        "start_amplification": Param(
            2.0,
            type="number",
            minimum=1,
            title="Start amplification",
            description_md="Compact a job if one of its files has **more** bytes than this times "
            "its live ones.",
        ),
        "stop_amplification": Param(
            1.5,
            type="number",
            minimum=1,
            title="Stop amplification",
            description_md="Then rewrite all its files above this one, the worst first.",
        ),
        "input_mb": Param(
            1024,
            type="integer",
            minimum=1,
            title="Input (MB)",
            description_md="Copy at most so much of a job in a run. The bytes live **twice** until "
            "the checkpoints that there are now are subsumed.",
        ),
        "drain_parallelism": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Drain parallelism",
            description_md="Empty the directories of the subtasks of a parallelism that the job "
            "does not use any more, instead of what is wasteful. Empty: do not.",
        ),
    },
)
def space_amplification_compaction() -> None:
    """Lists the jobs; plans, has approved if need be, and applies for each; adds up the results."""

    @task
    def list_jobs() -> list[str]:
        return jobs_to_maintain(params_of_run()["job"])

    jobs = list_jobs()
    preflight() >> jobs
    plan_approve_apply("compact", "compaction", jobs)


space_amplification_compaction()
