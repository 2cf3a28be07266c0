"""State that expires: value, list element by list element, and map by user key.

A TTL of 1 ms is over in the next batch, whatever the machine does; one of 100 years never. Between
them, each engine is held against the reference at the engine's own batch times.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import pytest
from pyspark.sql import DataFrame

from tests.conformance.engines import Engine, by_key, times
from tests.conformance.generated import calls, sample, scripts
from tests.conformance.reference import Reference, ScriptRow
from tests.conformance.scripts import OUTPUT, Call, Interpreter, InterpreterInPandas, dump

pytestmark = pytest.mark.spark

CENTURY_MS = int(timedelta(days=36_500).total_seconds() * 1000)
FIRST: list[Call] = [
    ["value_ttl", "update", [1, "first"]],
    ["list_ttl", "put", [[1], [2]]],
    ["map_ttl", "updateValue", ["a", 1], [1]],
    ["map_ttl", "updateValue", ["b", 2], [2]],
    ["value", "update", [1, "never expires"]],
]
HANDWRITTEN: dict[str, list[list[Call]]] = {
    "read only": [[*FIRST, *dump(ttl=True)], dump(ttl=True), dump(ttl=True), []],
    "value set again": [FIRST, [["value_ttl", "update", [2, "again"]]], [], []],
    "list grows": [FIRST, [["list_ttl", "appendList", [[3], [4]]], ["list_ttl", "get"]], [], []],
    "list put": [FIRST, [["list_ttl", "put", [[5]]], ["list_ttl", "get"]], [], []],
    "one user key": [
        FIRST,
        [["map_ttl", "updateValue", ["a", 1], [3]], ["map_ttl", "containsKey", ["b", 2]]],
        [["map_ttl", "getValue", ["a", 1]], ["map_ttl", "keys"]],
        [],
    ],
    "cleared": [FIRST, [[f"{name}_ttl", "clear"] for name in ("value", "list", "map")], FIRST, []],
}


def script(generated: int) -> list[list[ScriptRow]]:
    of_keys = {key: [[batch] if batch else [] for batch in b] for key, b in HANDWRITTEN.items()}
    for number, found in enumerate(sample(scripts(calls(ttl=True), batches=4), generated)):
        of_keys[f"generated {number}"] = found
    clock = ScriptRow("clock", [["times"]])
    batches = [
        [clock, *[ScriptRow(key, row) for key, b in of_keys.items() for row in b[n]]]
        for n in range(4)
    ]
    return [*batches, [clock, *[ScriptRow(key, dump(ttl=True)) for key in of_keys]]]


def check(
    engine: Engine, batches: Sequence[Sequence[ScriptRow]], ttl_ms: int, *, in_pandas: bool = False
) -> list[dict[str | None, list[tuple[str, str]]]]:
    def transform(df: DataFrame) -> DataFrame:
        grouped = engine.group(df, "key")
        if in_pandas:
            processor = InterpreterInPandas(ttl_ms)
            return grouped.transformWithStateInPandas(processor, OUTPUT, "Append", "ProcessingTime")
        return grouped.transformWithState(Interpreter(ttl_ms), OUTPUT, "Append", "ProcessingTime")

    found = engine.run_scripts(batches, transform)
    reference = Reference(partial(Interpreter, ttl_ms), "processingtime")
    expected = [
        reference.run(rows, times(output)[0]) for rows, output in zip(batches, found, strict=True)
    ]
    assert [by_key(rows) for rows in found] == expected
    return expected


def result(found: dict[str | None, list[tuple[str, str]]], key: str, call: str) -> str:
    return dict(found[key])[call]


def test_state_expires_by_itself_and_only_itself(engine: Engine) -> None:
    """About as long as one batch takes, so that some state expires between any two of them."""
    found = check(engine, script(generated=25), ttl_ms=700)
    last = found[-1]
    assert result(last, "read only", '["value", "get"]') == "(1, 'never expires',)"


@pytest.mark.parametrize(("ttl_ms", "is_there"), [(1, False), (CENTURY_MS, True)])
def test_what_was_set_is_there_in_its_batch_and_then_as_long_as_its_ttl(
    engine: Engine, ttl_ms: int, *, is_there: bool
) -> None:
    clock = ScriptRow("clock", [["times"]])
    batches = [
        [clock, ScriptRow("a", [*FIRST, *dump(ttl=True)])],
        [clock, ScriptRow("a", dump(ttl=True))],
    ]
    in_pandas = is_there and engine.is_cairn
    first, second = check(engine, batches, ttl_ms, in_pandas=in_pandas)
    for variable in ("value_ttl", "list_ttl", "map_ttl"):
        assert result(first, "a", f'["{variable}", "exists"]') == "True"
        assert result(second, "a", f'["{variable}", "exists"]') == str(is_there)
