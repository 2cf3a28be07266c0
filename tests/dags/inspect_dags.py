"""What Airflow sees in `dags/`, as JSON; in a process of its own, because of what it imports."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

HEAVY = ("alembic", "boto3", "lmdb", "pandas", "psycopg2", "pyarrow", "pyspark")


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
    """Returns a task's settings in JSON values."""
    return {
        "owner": task.owner,
        "retries": task.retries,
        "exponential_backoff": bool(task.retry_exponential_backoff),
        "execution_timeout_s": task.execution_timeout and task.execution_timeout.total_seconds(),
        "pool": task.pool,
        "mapped": task.is_mapped,
        "upstream": sorted(task.upstream_task_ids),
    }


def main(folder: str) -> None:
    """Prints the facts."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.utils.dag_version_inflation_checker import check_dag_file_stability

    before = {name for name in HEAVY if name in sys.modules}
    began = time.process_time()
    bag = DagBag(folder)
    parse_s = time.process_time() - began
    facts = {
        "import_errors": bag.import_errors,
        "parse_s": parse_s,
        "heavy": sorted({name for name in HEAVY if name in sys.modules} - before),
        "unstable": {
            str(file): check_dag_file_stability(str(file)).format_warnings()
            for file in Path(folder).glob("*.py")
        },
        "dags": {dag_id: describe(dag) for dag_id, dag in bag.dags.items()},
    }
    print("\n" + json.dumps(facts, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
