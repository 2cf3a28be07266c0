"""Whether the pool of the maintenance exists, asked before its tasks wait in it for ever.

A task has no way to ask Airflow for its pools: Airflow 3 keeps tasks away from its database, and
the API for tasks has none of pools. What a task can ask for is the state of other tasks. So one
task in the pool does nothing, and another one, outside of it, looks whether that has got a slot.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import PokeReturnValue, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from cairn.airflow_ext.pools import MAINTENANCE_POOL

WAIT = timedelta(minutes=5)
"""How long the first slot may take where the next run is minutes away."""
PATIENT_WAIT = timedelta(hours=6)
"""And where it is a day or a week away: the slots of the pool may all be in use for hours."""

_IN_POOL = "pool_slot"
_UNPLACED = (None, "none", "scheduled")


def preflight(wait: timedelta = WAIT) -> Any:  # noqa: ANN401 - what Airflow's decorators return
    """Adds the two tasks to a Dag and returns the one that all others have to follow.

    It fails, without a retry and with the command to run, if the pool gives no slot for `wait`.
    """

    # Before the others that wait in the pool: it is over at once.
    @task(task_id=_IN_POOL, pool=MAINTENANCE_POOL, priority_weight=1_000, weight_rule="absolute")
    def pool_slot() -> bool:
        return True

    @task.sensor(task_id="preflight", poke_interval=3, exponential_backoff=True, mode="reschedule")
    def look() -> PokeReturnValue:
        context = get_current_context()
        run = context["dag_run"]
        states = context["ti"].get_task_states(
            dag_id=run.dag_id, task_ids=[_IN_POOL], run_ids=[run.run_id]
        )
        began_at = run.start_date or datetime.now(UTC)
        state = states.get(run.run_id, {}).get(_IN_POOL)
        is_placed = has_slot(state, datetime.now(UTC) - began_at, wait)
        return PokeReturnValue(is_done=is_placed, xcom_value=is_placed)

    pool_slot()
    return look()


def has_slot(state: str | None, waited: timedelta, wait: timedelta) -> bool:
    """Tells from its state whether a task was given a slot of the pool.

    Raises:
        AirflowFailException: it was not, and `waited` is `wait` or more.
    """
    if state not in _UNPLACED:
        return True
    if waited < wait:
        return False
    raise AirflowFailException(
        f"the pool {MAINTENANCE_POOL} has given no slot for {wait.total_seconds() / 60:g} min: it "
        "is missing, or all its slots are in use. Look at `airflow pools list`. If missing, run "
        f'`airflow pools set {MAINTENANCE_POOL} 4 "Cairn maintenance"`; nothing was changed'
    )
