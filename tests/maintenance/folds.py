"""A job whose changelogs are folded: its batches run here, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import text

from cairn.catalog.catalog import Catalog
from cairn.catalog.job.segments import segments_at
from cairn.catalog.maintenance.plans import StoredPlan
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.runtime.executor.run_context import RunContext
from metastore.enums import MaintenanceAction
from tests.runtime.killed_at_a_step import EXECUTOR
from tests.runtime.tasks import EVERYTHING, Task, new_run, remember, remember_big, run_together


class FoldedJob:
    """A query of some subtasks on one executor."""

    def __init__(self, url: str, storage: str, local_dir: str, parallelism: int = 2) -> None:
        self.catalog = Catalog(url)
        self._given = (url, storage, local_dir)
        self.batches = 0
        self.restart(parallelism)

    def restart(self, parallelism: int = 2, **options: object) -> None:
        self.plan: RunContext = new_run(*self._given, parallelism=parallelism, options=options)

    def run(self, batches: int, *, materializes: bool = False) -> int:
        """Runs batches; returns the newest checkpoint, which is not confirmed yet."""
        for _ in range(batches):
            write = (remember_big if self.batches == 0 else remember)(self.batches)
            facts = (self.plan, EXECUTOR, self.batches)
            run_together(
                [
                    Task(*facts, subtask, 2, write, materializes)
                    for subtask in range(self.plan.parallelism)
                ]
            )
            self.batches += 1
        return int(self.scalar("SELECT max(checkpoint_id) FROM cairn.checkpoints"))

    def sql(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement, in which `:job` is the job's id."""
        given = {"job": self.plan.job_id} | values
        needed = {name: value for name, value in given.items() if f":{name}" in statement}

        def work(connection: Any) -> list[tuple[Any, ...]]:
            result = connection.execute(text(statement), needed)
            return [tuple(row) for row in result] if result.returns_rows else []

        return self.catalog.run("testing", work)

    def scalar(self, statement: str, **values: Any) -> Any:
        [(value,)] = self.sql(statement, **values)
        return value

    def make_due(self) -> None:
        """Makes every subtask due that has changelog."""
        self.sql("UPDATE cairn.jobs SET materialize_interval_ms = 1 WHERE job_id = :job")

    def planned(self) -> StoredPlan | None:
        return plan_action(self.catalog, MaintenanceAction.MATERIALIZATION, self.plan.job)

    def fold(self) -> Mapping[str, Any]:
        """Folds all that is due."""
        self.make_due()
        plan = self.planned()
        assert plan is not None
        return apply_plan(self.catalog, plan.run_id)

    def kinds(self, checkpoint_id: int) -> list[str]:
        handles = self.catalog.run(
            "reading", lambda c: segments_at(c, self.plan.job_id, checkpoint_id, EVERYTHING)
        )
        return [handle.kind.value for handle in handles]
