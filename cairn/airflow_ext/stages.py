"""The stages of each maintenance Dag, mapped over its jobs: plan, approve if need be, apply."""

from __future__ import annotations

from typing import Any

from airflow.sdk import task, task_group

from cairn.airflow_ext.approval import PassBreakers, PlanLink
from cairn.airflow_ext.maintenance import params_of_run, total
from cairn.airflow_ext.plans import apply_one, plan_one
from cairn.airflow_ext.pools import MAINTENANCE_POOL


def plan_approve_apply(group: str, action: str, jobs: Any) -> None:  # noqa: ANN401 - an XCom
    """Adds the stages of an action to a Dag, as a task group for each job, and their summary.

    Nobody waits in a slot: an approval is waited for by no process, and only where a circuit
    breaker spoke about the plan.
    """

    @task_group(group_id=group)
    def stages(job: str) -> Any:  # noqa: ANN401 - an XCom
        @task(pool=MAINTENANCE_POOL, map_index_template="{{ task.op_kwargs['job'] }}")
        def plan(job: str) -> dict[str, Any]:
            return plan_one(action, job, params_of_run())

        @task(pool=MAINTENANCE_POOL, map_index_template="{{ task.op_kwargs['planned']['job'] }}")
        def apply(planned: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            return apply_one(planned, answer, params_of_run())

        planned = plan(job=job)
        approve = PassBreakers(
            task_id="approve",
            planned=planned,
            map_index_template="{{ task.planned['job'] }}",
        )
        applied: Any = apply(planned=planned, answer=approve.output)  # type: ignore[arg-type]
        applied.operator.operator_extra_links = (PlanLink(),)
        return applied

    @task(trigger_rule="none_failed")
    def summarise(reports: list[dict[str, Any]]) -> dict[str, int]:
        return total(reports)

    summarise(stages.expand(job=jobs))  # type: ignore[arg-type]  # an XCom, until it runs
