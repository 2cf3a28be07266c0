"""All types: in rows, in keys, in state, and as the user keys of a map."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from tests.conformance.engines import Engine
from tests.conformance.processors import (
    COUNTED_OUTPUT,
    TYPED_OUTPUT,
    Counting,
    Typed,
    canonical,
)

pytestmark = pytest.mark.spark


class Column(NamedTuple):
    """A column with the values of rows 0 and 1, in SQL; row 2 holds null."""

    name: str
    sql_type: str
    first: str
    second: str


SCALARS = [
    Column("flag", "boolean", "true", "false"),
    Column("tiny", "tinyint", "-128", "127"),
    Column("small", "smallint", "-32768", "300"),
    Column("whole", "int", "-2147483648", "65536"),
    Column("large", "bigint", "-9223372036854775808", "1"),
    Column("single", "float", "'0.1'", "'-0.0'"),
    Column("double", "double", "'0.1'", "'-Infinity'"),
    Column("price", "decimal(10,2)", "12345678.91", "-0.10"),
    Column("exact", "decimal(38,18)", "1.5", "-99999999999999999999.000000000000000001"),
    Column("word", "string", "'ä\\u0000'", "''"),
    Column("long_word", "string", "repeat('long', 1000)", "' '"),
    Column("data", "binary", "x'00ff'", "x''"),
    Column("day", "date", "'2024-02-29'", "'1969-12-31'"),
    Column("moment", "timestamp", "'2024-03-31 01:30:00.123456'", "'1950-01-01 00:00:00'"),
    Column("wall", "timestamp_ntz", "'2024-03-31 02:30:00.123456'", "'1950-01-01 00:00:00'"),
    Column(
        "pair",
        "struct<a: int, b: struct<c: string, d: timestamp>>",
        "named_struct('a', 1, 'b', named_struct('c', 'x', 'd', timestamp'2024-01-01'))",
        "named_struct('a', 2, 'b', null)",
    ),
]
INTERVAL = Column(
    "length", "interval day to second", "interval '-1 02:03:04.000007' day to second", "null"
)
NAN = Column("nan", "double", "'NaN'", "'NaN'")
NESTED = [
    NAN,
    Column("numbers", "array<int>", "array(1, null)", "array()"),
    Column("words", "map<string, int>", "map('b', 1, 'a', null)", "map()"),
    Column("pairs", "array<struct<a: int>>", "array(named_struct('a', 1), null)", "array()"),
    Column("moments", "array<timestamp>", "array(timestamp'2024-01-01')", "array(null)"),
]
# Spark takes these in rows only; Cairn's state holds them too.
ROWS_ONLY = [
    INTERVAL,
    Column("by_number", "map<int, array<string>>", "map(1, array('a'))", "map()"),
]
ROW = [*SCALARS, *NESTED, *ROWS_ONLY]


def expressions(columns: list[Column]) -> list[str]:
    def cast(value: str, sql_type: str) -> str:
        return f"cast({value} as {sql_type})"

    return [
        f"case id when 0 then {cast(column.first, column.sql_type)} "
        f"when 1 then {cast(column.second, column.sql_type)} end as {column.name}"
        for column in columns
    ]


def schema_of(session: SparkSession, columns: list[Column]) -> StructType:
    return session.range(0).selectExpr(*expressions(columns)).schema


def input_rows(engine: Engine, batches: list[list[int]]) -> DataFrame:
    for ids in batches:
        engine.add_file([{"id": number} for number in ids])
    return engine.read("id long").selectExpr("id", *expressions(ROW))


def test_values_of_all_types_come_back_from_rows_state_and_maps(engine: Engine) -> None:
    session = engine.session
    more = ROWS_ONLY if engine.is_cairn else []
    kept, user_key = schema_of(session, [*SCALARS, *NESTED, *more]), schema_of(session, SCALARS)
    rows = schema_of(session, ROW)
    df = input_rows(engine, [[0, 1, 2]] * 2)
    processor = Typed(kept, user_key, rows)
    grouped = engine.group(df, "id")
    first, second = engine.run(
        grouped.transformWithState(processor, TYPED_OUTPUT, "Append", "None")
    )
    collected = session.range(3).selectExpr("id", *expressions(ROW)).collect()

    def shown(where: str, schema: StructType) -> set[tuple[int, str, str]]:
        return {
            (row["id"], f"{where} {field.name}", canonical(row[field.name], field.dataType))
            for row in collected
            for field in schema
        }

    expected = shown("row", rows)
    assert values(first) == expected
    for where in ("value", "list", "map"):
        expected |= shown(where, kept)
    assert values(second) == expected | shown("user key", user_key)
    check_python_types(engine, second)


def values(rows: list[Row]) -> set[tuple[int, str, str]]:
    return {(row["id"], row["what"], row["value"]) for row in rows}


def check_python_types(engine: Engine, rows: list[Row]) -> None:
    """State gives the same types; rows differ as docs/deviations.md says."""
    types = {row["what"]: row["python_type"] for row in rows if row["id"] == 0}
    assert types["row pair"] == ("Row" if engine.is_cairn else "dict")
    assert types["row words"] == ("dict" if engine.is_cairn else "list")
    for where in ("value", "list", "map"):
        assert types[f"{where} pair"] == "Row"
        assert types[f"{where} words"] == "dict"
        assert types[f"{where} moment"] == "datetime"
        assert types[f"{where} price"] == "Decimal"
        assert types[f"{where} data"] == "bytes"


def test_keys_of_all_types_are_the_same_keys_in_every_batch(engine: Engine) -> None:
    columns = [*SCALARS, INTERVAL] if engine.is_cairn else SCALARS
    names = [column.name for column in columns]
    df = input_rows(engine, [[0, 1, 0, 2, 2], [2, 1, 0]])
    processor = Counting(schema_of(engine.session, columns))
    grouped = engine.group(df, *names)
    found = engine.run(grouped.transformWithState(processor, COUNTED_OUTPUT, "Append", "None"))
    collected = engine.session.range(3).selectExpr(*expressions(columns)).collect()
    keys = [
        " ".join(canonical(row[f.name], f.dataType) for f in processor._key_schema)
        for row in collected
    ]
    if engine.is_cairn:
        keys[1] = keys[1].replace(" -0.0 ", " 0.0 ")  # one zero; Spark's rows have two
    assert sorted(map(tuple, found[0])) == sorted(
        [(keys[0], 2, 2), (keys[1], 1, 1), (keys[2], 2, 2)]
    )
    assert sorted(map(tuple, found[1])) == sorted(
        [(keys[0], 1, 3), (keys[1], 1, 2), (keys[2], 1, 3)]
    )


def test_not_a_number_is_one_key(engine: Engine) -> None:
    """Spark's Python worker calls handleInputRows for each such row, on the same state."""
    df = input_rows(engine, [[0, 1]])
    processor = Counting(schema_of(engine.session, [NAN]))
    grouped = engine.group(df, "nan")
    (rows,) = engine.run(grouped.transformWithState(processor, COUNTED_OUTPUT, "Append", "None"))
    assert {row["key"] for row in rows} == {"nan"}
    assert max(row["total"] for row in rows) == 2
    assert len(rows) == (1 if engine.is_cairn else 2)
