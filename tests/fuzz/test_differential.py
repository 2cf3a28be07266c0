"""Random processors do the same on both engines; `make fuzz` runs thousands."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.fuzz.differential import difference
from tests.fuzz.generated import Case, case

KEYS = 40
SEEDS = [4, 11, 18, 23, 29]


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
