"""Runs the cleanup Dag with a JSON conf, here and now, and prints the states of its tasks."""

from __future__ import annotations

import json
import sys

DAG_ID = "subsumption_cleanup"
BUNDLE = "dags-folder"


def main(folder: str, conf: str) -> None:
    """Prints one line of JSON: the run's state and its task instances'."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
    bag = DagBag(folder)
    sync_bag_to_db(bag, BUNDLE, None)
    run = bag.dags[DAG_ID].test(run_conf=json.loads(conf))
    states = {f"{task.task_id}[{task.map_index}]": task.state for task in run.get_task_instances()}
    print("\n" + json.dumps({"state": run.state, "tasks": states}))


if __name__ == "__main__":
    main(*sys.argv[1:])
