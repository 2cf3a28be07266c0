"""Value, list and map state: every call, in both forms, handwritten and generated."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame

from tests.conformance.engines import Engine, by_key
from tests.conformance.generated import calls, sample, scripts
from tests.conformance.reference import Reference, ScriptRow
from tests.conformance.scripts import OUTPUT, Call, Interpreter, InterpreterInPandas, dump

pytestmark = pytest.mark.spark

K = ["a", 1]
HANDWRITTEN: dict[str | None, list[list[Call]]] = {
    "value": [
        [
            *dump(),
            ["value", "clear"],
            ["value", "update", [1, "one"]],
            ["value", "get"],
            ["value", "update", [None, None]],
            ["value", "exists"],
            ["value", "get"],
        ],
        [["value", "get"], ["value", "clear"], ["value", "exists"], ["value", "get"]],
        [["value", "exists"], ["value", "update", [2, "x" * 100_000]], ["value", "get"]],
    ],
    "list": [
        [
            ["list", "appendValue", [1]],
            ["list", "appendList", [[2], [None]]],
            ["list", "get"],
            ["list", "put", [[4], [5]]],
            ["list", "appendValue", [6]],
            ["grow"],
            ["list", "get"],
        ],
        [["list", "appendValue", [7]], ["list", "get"], ["list", "clear"], ["list", "exists"]],
        [["list", "get"], ["list", "appendList", [[8], [9]]], ["list", "get"]],
    ],
    "map": [
        [
            ["map", "updateValue", K, [1]],
            ["map", "updateValue", K, [2]],
            ["map", "updateValue", ["a", None], [None]],
            ["map", "updateValue", [None, 1], [3]],
            ["map", "getValue", K],
            ["map", "getValue", ["none", 0]],
            ["map", "containsKey", ["a", None]],
            ["map", "removeKey", ["none", 0]],
            ["map", "removeKey", [None, 1]],
            *dump(),
        ],
        [["map", "getValue", K], ["map", "updateValue", ["b", 2], [4]], ["empty"], *dump()],
        [["map", "updateValue", K, [5]], ["map", "clear"], ["map", "getValue", K], *dump()],
    ],
    "many": [
        [
            ["list", "appendList", [[n] for n in range(250)]],
            *[["map", "updateValue", [str(n), n], [n]] for n in range(250)],
            *dump(),
        ],
        [["list", "appendValue", [-1]], ["map", "removeKey", ["100", 100]], ["grow"], *dump()],
        [["empty"], ["list", "clear"], *dump()],
    ],
    "twice in a batch": [[["value", "update", [n, "row"]], ["value", "get"]] for n in range(3)],
    None: [[["value", "update", [0, "the null key"]]], [["value", "get"]], [["value", "get"]]],
    "": [[["value", "update", [0, "the empty key"]]], [["value", "get"]], [["value", "get"]]],
    "long" * 200: [[["map", "updateValue", ["k" * 600, 0], [1]]], [["map", "iterator"]], dump()],
}


def script(generated: int) -> list[list[ScriptRow]]:
    """Returns four batches: handwritten calls, generated ones, and what is left at the end."""
    of_keys = {key: [[batch] for batch in batches] for key, batches in HANDWRITTEN.items()}
    for number, found in enumerate(sample(scripts(calls(), batches=3), generated)):
        of_keys[f"generated {number}"] = found
    batches = [
        [ScriptRow(key, row) for key, found in of_keys.items() for row in found[batch]]
        for batch in range(3)
    ]
    return [*batches, [ScriptRow(key, dump()) for key in of_keys]]


def check(engine: Engine, batches: Sequence[Sequence[ScriptRow]], *, in_pandas: bool) -> None:
    def transform(df: DataFrame) -> DataFrame:
        grouped = engine.group(df, "key")
        if in_pandas:
            return grouped.transformWithStateInPandas(
                InterpreterInPandas(), OUTPUT, "Append", "None"
            )
        return grouped.transformWithState(Interpreter(), OUTPUT, "Update", "None")

    reference = Reference(Interpreter, "none")
    expected = [reference.run(rows, processing_ms=-1) for rows in batches]
    assert [by_key(rows) for rows in engine.run_scripts(batches, transform)] == expected


def test_every_call_on_state_gives_the_same(engine: Engine) -> None:
    check(engine, script(generated=60), in_pandas=False)


def test_every_call_on_state_gives_the_same_in_pandas(engine: Engine) -> None:
    check(engine, script(generated=15), in_pandas=True)
