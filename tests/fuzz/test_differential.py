"""Random processors do the same on both engines; `make fuzz` runs thousands."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.fuzz.differential import difference
from tests.fuzz.generated import PICKED, Case, case

KEYS = 40
SEEDS = [2, 12, 47, 52, 55]


@pytest.mark.spark
@pytest.mark.parametrize("number", SEEDS)
def test_random_processors_do_the_same_on_both_engines(
    number: int, session: SparkSession, shared_metastore_url: str, tmp_path: Path
) -> None:
    assert difference(case(number, KEYS), session, tmp_path, shared_metastore_url) == ""


def test_the_cases_are_of_every_kind() -> None:
    def kind(made: Case) -> tuple[bool, bool]:
        return made.in_pandas, made.is_stream

    made = [case(number, 1) for number in SEEDS]
    assert len(set(map(kind, made))) == 4
    assert {one.mode for one in made} == {"None", "ProcessingTime", "EventTime"}
    assert {one.ttl_ms is None for one in made} == {True, False}
    assert case(4, KEYS) == case(4, KEYS)
    in_event_time = [case(n, KEYS) for n in SEEDS if case(n, 1).mode == "EventTime"]
    assert {one.in_pandas for one in in_event_time if one.is_stream} == {True, False}
    assert all(late_rows(one) > 5 for one in in_event_time)
    nested = ("array<", "map<", "struct<")
    assert any(
        PICKED[name][0].startswith(nested) for one in made if one.in_pandas for name in one.columns
    )


def late_rows(made: Case) -> int:
    return sum(row["is_late"] for _, batches in made.runs for batch in batches for row in batch)
