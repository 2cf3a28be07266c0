"""A process with Airflow that does what it is asked to, line by line: importing Airflow takes long.

Each line of the standard input is a request as JSON, with the metastore it is for; each answer is a
line of JSON after `ANSWER`, because Airflow prints too.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ANSWER = "answer: "
DAG_ID = "subsumption_cleanup"
BUNDLE = "dags-folder"
HEAVY = ("alembic", "boto3", "lmdb", "pandas", "psycopg2", "pyarrow", "pyspark")


def main(folder: str) -> None:
    """Answers requests: first what is in the folder, before anything heavy is imported."""
    answer(inspect(folder))
    migrate(folder)
    for line in sys.stdin:
        request = json.loads(line)
        os.environ["CAIRN_METASTORE"] = request["metastore"]
        work = {"run": run, "clean": clean, "total": total, "slot": slot}[request["do"]]
        answer(work(folder, request["given"]))


def answer(found: Any) -> None:
    """Prints an answer."""
    print("\n" + ANSWER + json.dumps(found, default=str), flush=True)


def inspect(folder: str) -> dict[str, Any]:
    """Returns what Airflow sees in the folder."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.utils.dag_version_inflation_checker import check_dag_file_stability

    before = {name for name in HEAVY if name in sys.modules}
    began = time.process_time()
    bag = DagBag(folder)
    parse_s = time.process_time() - began
    return {
        "import_errors": bag.import_errors,
        "parse_s": parse_s,
        "heavy": sorted({name for name in HEAVY if name in sys.modules} - before),
        "unstable": {
            str(file): check_dag_file_stability(str(file)).format_warnings()
            for file in Path(folder).glob("*.py")
        },
        "dags": {dag_id: describe(dag) for dag_id, dag in bag.dags.items()},
    }


def describe(dag: Any) -> dict[str, Any]:
    """Returns a Dag's settings in JSON values."""
    return {
        "doc_md": dag.doc_md,
        "tags": sorted(dag.tags),
        "catchup": dag.catchup,
        "start_date": dag.start_date.isoformat(),
        "max_active_runs": dag.max_active_runs,
        "dagrun_timeout_s": dag.dagrun_timeout and dag.dagrun_timeout.total_seconds(),
        "params": {name: dag.params.get_param(name).dump() for name in dag.params},
        "tasks": {task.task_id: describe_task(task) for task in dag.tasks},
    }


def describe_task(task: Any) -> dict[str, Any]:
    """Returns a task's settings in JSON values, and its links of the third job of a run `a`."""
    from airflow.models.taskinstancekey import TaskInstanceKey
    from airflow.providers.standard.operators.hitl import HITLOperator
    from airflow.sdk.bases.sensor import BaseSensorOperator

    return {
        "owner": task.owner,
        "retries": task.retries,
        "exponential_backoff": bool(task.retry_exponential_backoff),
        "execution_timeout_s": task.execution_timeout and task.execution_timeout.total_seconds(),
        "pool": task.pool,
        "mapped": task.is_mapped,
        "upstream": sorted(task.upstream_task_ids),
        "is_sensor": isinstance(task, BaseSensorOperator),
        "is_rescheduled": getattr(task, "mode", None) == "reschedule",
        "awaits_input": isinstance(task, HITLOperator),
        "links": [
            link.get_link(task, ti_key=TaskInstanceKey(task.dag_id, task.task_id, "a", 1, 3))
            for link in task.operator_extra_links
        ],
    }


def migrate(folder: str) -> None:
    """Makes Airflow's database, with the folder's Dags in it."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.utils.db import upgradedb

    upgradedb()
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
    sync_bag_to_db(DagBag(folder), BUNDLE, None)


def run(folder: str, given: Any) -> dict[str, Any]:
    """Runs a Dag, by default the cleanup, here and now; returns its state and its tasks'."""
    from airflow.dag_processing.dagbag import DagBag

    os.environ["AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS"] = str(given["overrides_params"])
    if given.get("answer"):
        threading.Thread(target=give_answer, args=[given["answer"]], daemon=True).start()
    done = DagBag(folder).dags[given.get("dag", DAG_ID)].test(run_conf=given["conf"])
    states = {f"{task.task_id}[{task.map_index}]": task.state for task in done.get_task_instances()}
    return {"state": done.state, "tasks": states}


def slot(folder: str, given: Any) -> Any:
    """Returns what preflight says of a task in a state after some minutes of at most five."""
    from airflow.sdk.exceptions import AirflowFailException

    from cairn.airflow_ext.preflight import has_slot

    try:
        return has_slot(
            given["state"], timedelta(minutes=given["waited_min"]), timedelta(minutes=5)
        )
    except AirflowFailException as error:
        return str(error)


def give_answer(choice: str) -> None:
    """Answers the first question that a task asks people, as Airflow's API does."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import handle_event_submit
    from airflow.triggers.base import TriggerEvent
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    asked = (
        select(HITLDetail, TaskInstance)
        .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .where(
            HITLDetail.responded_at.is_(None),
            TaskInstance.state == TaskInstanceState.AWAITING_INPUT,
        )
    )
    while True:
        with create_session() as session:
            if (found := session.execute(asked).first()) is not None:
                detail, instance = found
                detail.responded_by = {"id": "1", "name": "ada"}
                detail.responded_at = datetime.now(UTC)
                detail.chosen_options = [choice]
                detail.params_input = {}
                event = TriggerEvent(detail.as_resume_event_payload())  # type: ignore[no-untyped-call]
                handle_event_submit(event, task_instance=instance, session=session)
                return
        time.sleep(0.2)


def clean(_: str, job: str) -> list[str]:
    """Cleans a job as its task does; returns the error's name and message, if there is one."""
    from cairn.airflow_ext.plans import apply_one
    from cairn.errors import StorageError

    planned = {"action": "subsumption", "job": job, "plan": None, "report": None}
    try:
        apply_one(planned, {"approved": True, "by": None}, {"dry_run": False})
    except StorageError as error:
        return [type(error).__name__, str(error)]
    return []


def total(_: str, reports: Any) -> dict[str, int]:
    """Returns the summary of reports."""
    from cairn.airflow_ext import maintenance

    return maintenance.total(reports)


if __name__ == "__main__":
    main(*sys.argv[1:])
