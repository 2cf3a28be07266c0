"""State variables that change, go, or come back over restarts, with real segments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.streams.declaring import OLD, Declares
from tests.streams.streams import Settings, newest_state, rows, start

pytestmark = pytest.mark.spark

MakeStream = Callable[..., Settings]
KEYS = "abcdefgh"


def run(spark: SparkSession, settings: Settings, processor: Declares) -> str:
    """Runs one more batch with all keys; returns what every key's states held before."""
    source = Path(settings.source)
    batch = len(list(source.glob("*.json")))
    lines = [json.dumps({"key": key, "value": batch}) for key in KEYS]
    (source / f"{batch}.json").write_text("\n".join(lines))
    seen: list[Any] = []

    def collect(df: DataFrame, batch: int) -> None:
        seen.extend(df.collect())

    grouped = settings.cairn_job().groupBy(rows(spark, settings), "key")
    df = grouped.transformWithState(processor, OLD, "Update", "None")
    start(df, settings, collect).awaitTermination()
    assert sorted(row.key for row in seen) == list(KEYS)
    (old,) = {row.old for row in seen}
    return str(old)


def old(**values: Any) -> str:
    return str(values)


def state_of(values: Mapping[str, Any]) -> dict[tuple[str, str, str], Any]:
    return {(name, key, ""): value for name, value in values.items() for key in KEYS}


def test_fields_are_added_reordered_and_widened_over_restarts(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    settings = stream(0, options={"cairn.changelog.periodic-materialize.interval": "1 ms"})
    first = Declares({"a": "n int, word string"}, {"a": (7, "one")})
    assert run(spark, settings, first) == old(a=None)
    second = Declares({"a": "more double, word string, n long"}, {"a": (0.5, "two", 2**40)})
    assert run(spark, settings, second) == old(a=(None, "one", 7))
    elsewhere = replace(settings, local_dir=str(tmp_path / "another-machine"), parallelism=2)
    assert run(spark, elsewhere, second) == old(a=(0.5, "two", 2**40))


def test_a_variable_that_goes_and_comes_back_keeps_its_state(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(0)
    two = Declares({"a": "n int", "b": "n int"}, {"a": (1,), "b": (2,)})
    assert run(spark, settings, two) == old(a=None, b=None)
    one = Declares({"a": "n int"}, {"a": (3,)})
    assert run(spark, settings, one) == old(a=(1,))
    assert run(spark, settings, two) == old(a=(3,), b=(2,))


def test_a_deleted_variable_is_gone_and_its_name_free_for_another_schema(
    spark: SparkSession, stream: MakeStream
) -> None:
    settings = stream(0)
    two = Declares({"a": "n int", "b": "n int"}, {"a": (1,), "b": (2,)})
    assert run(spark, settings, two) == old(a=None, b=None)
    without = Declares({"b": "n int"}, {"b": (3,)}, deleted=["a", "never there"])
    assert run(spark, settings, without) == old(b=(2,))
    assert newest_state(settings.metastore) == state_of({"b": 3})
    again = Declares({"a": "word string", "b": "n int"}, {"a": ("new",), "b": (4,)})
    assert run(spark, settings, again) == old(a=None, b=(3,))
    assert newest_state(settings.metastore) == state_of({"a": "new", "b": 4})
