"""Airflow's human approval between planning and applying, only where a circuit breaker spoke."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk import BaseOperatorLink, Context
from airflow.sdk.configuration import conf

ANSWER_WITHIN = timedelta(minutes=30)
"""Then nobody has approved. Less than a plan lives, so an approved one can still be applied."""


class PlanLink(BaseOperatorLink):
    """Leads from the approval and the application of a plan to the task that has made it."""

    name = "Plan"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ANN401 - Airflow's
        """Returns the address of the return value of the task `plan` in the same group."""
        base = conf.get("api", "base_url", fallback="").rstrip("/")
        plan_id = operator.task_id.rpartition(".")[0] + ".plan"
        mapped = "" if ti_key.map_index < 0 else f"/mapped/{ti_key.map_index}"
        return f"{base}/dags/{ti_key.dag_id}/runs/{ti_key.run_id}/tasks/{plan_id}{mapped}/xcom"


class PassBreakers(ApprovalOperator):
    """Asks a person to pass the circuit breakers that spoke about a plan; else it asks nobody.

    `planned` is what `cairn.airflow_ext.plans.plan_one` returns. The value says whether it is
    `approved`, and `by` whom (None: nobody had to be asked, or nobody has answered within
    `ANSWER_WITHIN`). `apply_one` decides by it: in a mapped task group of Airflow 3.3, what
    `ApprovalOperator` skips runs all the same. Who may answer, Airflow decides: whoever may edit
    required actions of the Dag.
    """

    template_fields = (*ApprovalOperator.template_fields, "planned")
    operator_extra_links = (PlanLink(),)

    def __init__(self, *, planned: Any, **kwargs: Any) -> None:  # noqa: ANN401 - an XCom, until it runs
        super().__init__(
            subject="Cairn: a circuit breaker spoke",
            body="",
            defaults=self.REJECT,
            response_timeout=ANSWER_WITHIN,
            **kwargs,
        )
        self.planned = planned

    def execute(self, context: Context) -> Any:  # noqa: ANN401 - Airflow's
        """Waits for an answer, if there is a question."""
        if not self.planned["breakers"]:
            return {"approved": True, "by": None}
        self.subject, self.body = question(self.planned)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:  # noqa: ANN401
        """Returns who has answered, and what; skips nothing."""
        answer = HITLOperator.execute_complete(self, context, event)
        user = answer["responded_by_user"] or {}
        return {
            "approved": answer["chosen_options"] == [self.APPROVE],
            "by": user.get("name") or user.get("id"),
        }


def question(planned: Mapping[str, Any]) -> tuple[str, str]:
    """Returns what a person is asked about a plan: the subject, and the body in Markdown."""
    rows = "\n".join(
        f"| {one['breaker']} | {one['found']} | {one['limit']} |" for one in planned["breakers"]
    )
    names = " ".join(f"--pass {one['breaker']}" for one in planned["breakers"])
    return (
        f"Cairn: {planned['action']} of job {planned['job']} would delete {planned['files']} files",
        f"Plan `{planned['plan']}` deletes {planned['files']} files of {planned['size_bytes']} "
        "bytes, and that is unusual:\n\n"
        f"| circuit breaker | found | limit |\n|---|---|---|\n{rows}\n\n"
        "**Approve** only if you know why. It is recorded with your name. **Reject** changes "
        "nothing: the next run asks again. What the plan deletes, and what the job keeps:\n\n"
        f"```\ncairn apply {planned['plan']} --dry-run\ncairn space {planned['job']}\n```\n"
        "From a shell, within an hour of the plan:\n\n"
        f"```\ncairn apply {planned['plan']} {names} --by NAME\n```\n",
    )
