"""The output of a task's subtasks, which is made Arrow together and before the commit."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from cairn.errors import BadInputError
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.task import task
from tests.runtime.processing.operators import batch_of, operator_of
from tests.runtime.tasks import QUERY, new_run

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
OUTPUT = StructType().add("key", "string").add("at", "timestamp")
KEYS = {"a": 0, "b": 2, "c": 3, "d": 5, "e": 7}
"""Hashes by key: two of one subtask, and one of each of the others."""


class At(StatefulProcessor):
    """Yields each key with the time that is the value of its first row, in seconds."""

    def init(self, handle: Any) -> None:
        """Has no state."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(key=key[0], at=EPOCH + datetime.timedelta(seconds=next(rows).value))


@pytest.fixture
def plan(
    metastore_url: str, tmp_storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunContext:
    """A run of four subtasks in one task, in its first batch."""
    properties = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": "0"}
    context = SimpleNamespace(
        partitionId=lambda: 0, taskAttemptId=lambda: 1, getLocalProperty=properties.get
    )
    monkeypatch.setattr(task, "TaskContext", SimpleNamespace(get=lambda: context))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "blocks"))
    made = new_run(metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=4)
    return replace(made, tasks=1)


def run(plan: RunContext, seconds: dict[str, int]) -> list[tuple[str, int]]:
    operator = replace(operator_of(At()), output_schema=OUTPUT, emitted_time="at")
    rows = batch_of([(key, seconds.get(key, 1), None, KEYS[key], 0) for key in reversed(KEYS)])
    batches = list(task.run_task(plan, operator, iter([rows])))
    assert len(batches) == 1
    return [(row["key"], round(row["at"].timestamp())) for row in batches[0].to_pylist()]


def acknowledged(plan: RunContext) -> list[int]:
    return plan.catalog.run(
        "looking",
        lambda c: list(
            c.exec_driver_sql("SELECT subtask FROM cairn.subtask_acks ORDER BY 1").scalars()
        ),
    )


def test_rows_of_all_subtasks_come_once_in_order_of_subtask(plan: RunContext) -> None:
    found = run(plan, {"c": 9})
    # Within a subtask by first row, and the rows came in reverse.
    assert found == [("a", 1), ("c", 9), ("b", 1), ("d", 1), ("e", 1)]
    assert acknowledged(plan) == [0, 1, 2, 3]


def test_output_that_is_refused_refuses_the_batch(plan: RunContext) -> None:
    with pytest.raises(BadInputError, match="at or before the watermark"):
        run(plan, {"a": 0})
    assert acknowledged(plan) == []
