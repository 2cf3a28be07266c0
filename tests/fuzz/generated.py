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
    "grid": ("array<array<int>>", ["array(array(1, null), null, array())", "array()"]),
    "book": (
        "map<string, array<struct<a: int, b: timestamp_ntz>>>",
        [
            "map('x', array(named_struct('a', 1, 'b', timestamp_ntz'2024-03-31 02:30:00'), null))",
            "map('y', null, '', array(named_struct('a', null, 'b', null)))",
        ],
    ),
}
"""Columns: the type of each and its values in SQL; null is one more."""
NOT_IN_FRAMES = ["large", "length"]
"""Beside null, frames have no exact long."""
IN_KEYS = ["flag", "large", "price", "word", "day", "moment", "wall"]
IN_KEYS_OF_FRAMES = IN_KEYS[:-2]
"""A null timestamp in the key ends Spark's query there."""
DELAY_MS = 2_000
"""Of the watermark."""
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
    names = [n for n in PICKED if n not in NOT_IN_FRAMES] if in_pandas else [*PICKED]
    names = [n for n in names if n != "length" or not is_stream]
    columns = random.sample(names, random.randrange(2, 6))
    runs = [1, random.choice([2, 3, 8])] if is_stream else [2]
    times = _EventTimes(random)
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
                [_batch(random, keys, columns, mode, times) for _ in range(2 if is_stream else 1)],
            )
            for parallelism in runs
        ],
    )


class _EventTimes:
    """The event times of rows, batch by batch a minute later, and some around the watermarks."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._watermarks_ms = [0, 0]
        self._latest_ms = 0
        self._batch_ms = START_MS

    @property
    def late_ms(self) -> int:
        """Rows at it or before it are late: the watermark of the batch before."""
        return self._watermarks_ms[-2]

    def draw(self) -> int | None:
        """Returns that of a row."""
        drawn: int | None = self._batch_ms + self._random.randrange(1_000)
        if self._random.random() < 0.3:
            around = [self._batch_ms - 3_600_000, *self._watermarks_ms[-2:]]
            near = self._random.choice([None, *around])
            drawn = None if near is None else max(0, near + self._random.choice([-1, 0, 1]))
        self._latest_ms = max(self._latest_ms, drawn or 0)
        return drawn

    def end_batch(self) -> None:
        """Moves the watermark, and on to the next batch."""
        self._watermarks_ms.append(max(self._watermarks_ms[-1], self._latest_ms - DELAY_MS))
        self._batch_ms += 60_000


def _batch(
    random: Random, keys: int, columns: list[str], mode: str, times: _EventTimes
) -> list[dict[str, Any]]:
    rows = []
    for key in range(keys):
        for _ in range(random.choice([0, 1, 1, 2])):
            picks = [random.choice([None, 0, 0, 1, 2]) for _ in columns]
            calls = [_operation(random, columns, mode) for _ in range(random.randrange(1, 8))]
            at_ms = times.draw()
            rows.append(
                {
                    "key": None if key == 0 else f"key {key}",
                    "at_ms": at_ms,
                    "is_late": at_ms is not None and at_ms <= times.late_ms,
                    "calls": calls,
                    "picks": picks,
                    "key_pick": None if key % 5 == 1 else key % 3,
                }
            )
    times.end_batch()
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
