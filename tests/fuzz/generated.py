"""Random processors as plain data: for each key and batch a list of operations, and their rows."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

Operation = list[Any]

PICKED: dict[str, tuple[str, list[str]]] = {
    "flag": ("boolean", ["true", "false"]),
    "tiny": ("tinyint", ["-128", "127"]),
    "whole": ("int", ["-2147483648", "65536"]),
    "large": ("bigint", ["-9223372036854775808", "9223372036854775807", "0"]),
    "single": ("float", ["'0.1'", "'Infinity'", "'-1e-40'"]),
    "double": ("double", ["'0.1'", "'-Infinity'", "'1e308'"]),
    "price": ("decimal(10,2)", ["12345678.91", "-0.10", "0"]),
    "exact": ("decimal(38,18)", ["1.5", "-99999999999999999999.000000000000000001"]),
    "word": ("string", ["'ä\\u0000'", "''", "repeat('long', 200)"]),
    "data": ("binary", ["x'00ff'", "x''"]),
    "day": ("date", ["'2024-02-29'", "'0001-01-01'", "'9999-12-31'"]),
    "moment": ("timestamp", ["'2024-03-31 01:30:00.123456'", "'1950-01-01 00:00:00'"]),
    "wall": ("timestamp_ntz", ["'2024-03-31 02:30:00.123456'", "'1950-01-01 00:00:00'"]),
    "length": ("interval day to second", ["interval '-1 02:03:04.000007' day to second"]),
    "pair": (
        "struct<a: int, b: struct<c: string, d: timestamp>>",
        [
            "named_struct('a', 1, 'b', named_struct('c', 'x', 'd', timestamp'2024-01-01'))",
            "named_struct('a', null, 'b', null)",
        ],
    ),
    "numbers": ("array<int>", ["array(1, null)", "array()"]),
    "words": ("map<string, int>", ["map('b', 1, 'a', null)", "map()"]),
    "pairs": ("array<struct<a: int>>", ["array(named_struct('a', 1), null)"]),
    "moments": ("array<timestamp>", ["array(timestamp'2024-01-01', null)"]),
}
"""Columns: the type of each and its values in SQL; null is one more."""
IN_FRAMES = ["flag", "tiny", "whole", "double", "price", "word", "day", "moment", "wall"]
"""Columns of the pandas form: beside null, frames have no exact long; the others are objects."""
IN_KEYS = ["flag", "large", "price", "word", "day", "moment", "wall"]
IN_KEYS_OF_FRAMES = IN_KEYS[:-2]
"""A null timestamp in the key ends Spark's query there."""
INPUT = "key string, at_ms long, calls string, picks array<int>, key_pick int"
START_MS, FAR_MS, CENTURY_MS = 1_704_067_200_000, 4_102_444_800_000, 3_155_760_000_000
_COMMON = ["get", "exists", "clear"]
_COLLECTED = ["iterator", "keys", "values", "exists", "clear"]
_METHODS = {
    "value": ["update", "update", *_COMMON],
    "list": ["appendValue", "appendValue", "appendList", "put", *_COMMON],
    "map": ["updateValue", "updateValue", "getValue", "containsKey", "removeKey", *_COLLECTED],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Processors of one query: those of all keys run side by side."""

    in_pandas: bool
    is_stream: bool
    mode: str
    ttl_ms: int | None
    columns: list[str]
    key_column: str
    zone: str
    """The session's time zone: one without summers, as pandas cannot tell their hours apart."""
    runs: list[tuple[int, list[list[dict[str, Any]]]]]
    """For each run of the query its parallelism, and the rows of its batches."""

    def expressions(self) -> list[str]:
        """Returns the columns of the rows, of what the input has."""
        picked = [_expression(name, f"picks[{n}]") for n, name in enumerate(self.columns)]
        by_key = _expression(self.key_column, "key_pick").rpartition(" as ")[0]
        at = "timestamp_millis(at_ms) as at"
        return ["key", f"{by_key} as part", "calls", at, *picked]


def case(number: int, keys: int) -> Case:
    """Returns the case of a number, the same every time; `keys` is how many processors it has."""
    random = Random(number)
    in_pandas, is_stream = random.random() < 0.4, random.random() < 0.5
    mode = random.choice(["None", "ProcessingTime", "ProcessingTime", "EventTime"])
    # Spark keeps no interval in the state of a stream.
    names = IN_FRAMES if in_pandas else [n for n in PICKED if n != "length" or not is_stream]
    columns = random.sample(names, random.randrange(2, 6))
    runs = [1, random.choice([2, 3, 8])] if is_stream else [2]
    times = iter(range(START_MS, START_MS + 10**9, 60_000))
    return Case(
        in_pandas=in_pandas,
        is_stream=is_stream,
        mode=mode,
        # One is over in the next batch, the other never: the engines' clocks differ.
        ttl_ms=random.choice([None, 1, CENTURY_MS]) if mode == "ProcessingTime" else None,
        columns=columns,
        zone=random.choice(["UTC", "UTC", "Asia/Tokyo", "-03:30"]),
        key_column=random.choice(IN_KEYS_OF_FRAMES if in_pandas else IN_KEYS),
        runs=[
            (
                parallelism,
                [
                    _batch(random, keys, columns, mode, next(times))
                    for _ in range(2 if is_stream else 1)
                ],
            )
            for parallelism in runs
        ],
    )


def _batch(
    random: Random, keys: int, columns: list[str], mode: str, at_ms: int
) -> list[dict[str, Any]]:
    rows = []
    for key in range(keys):
        for _ in range(random.choice([0, 1, 1, 2])):
            picks = [random.choice([None, 0, 0, 1, 2]) for _ in columns]
            calls = [_operation(random, columns, mode) for _ in range(random.randrange(1, 8))]
            rows.append(
                {
                    "key": None if key == 0 else f"key {key}",
                    "at_ms": at_ms + random.randrange(1_000),
                    "calls": calls,
                    "picks": picks,
                    "key_pick": None if key % 5 == 1 else key % 3,
                }
            )
    return rows


def _operation(random: Random, columns: list[str], mode: str) -> Operation:
    name = random.choice(columns)
    what = random.choice(["value", "list", "map", "map", "emit", "emit state", "cell", "timer"])
    if what == "timer":
        if mode == "None":
            return ["cell", name]
        # Those of the past fire in this batch, the others never: or by the watermark.
        soon = START_MS + random.randrange(6) * 60_000 if mode == "EventTime" else 5
        method = random.choice(["registerTimer", "registerTimer", "deleteTimer", "listTimers"])
        expiry = random.choice([-1, 0, soon, soon, FAR_MS, FAR_MS + random.randrange(3)])
        return ["timer", method] if method == "listTimers" else ["timer", method, expiry]
    if what not in _METHODS:
        return [what, name]
    method = random.choice(_METHODS[what])
    user_key = [random.choice([None, "", "a", "ä"]), random.choice([None, 0, -1])]
    return [what, name, method, user_key] if what == "map" else [what, name, method]


def _expression(name: str, pick: str) -> str:
    sql_type, values = PICKED[name]
    cases = " ".join(f"when {n} then cast({v} as {sql_type})" for n, v in enumerate(values))
    return f"case {pick} {cases} else cast(null as {sql_type}) end as {name}"
