"""What groupBy takes: names in another case, fields of structs, Columns, lists and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cairn.errors import BadInputError
from cairn.runtime.driver.key_columns import with_key_columns
from tests.conformance.engines import Engine
from tests.conformance.givers import ShowingKeys

pytestmark = pytest.mark.spark


def input_of(session: SparkSession) -> DataFrame:
    return session.createDataFrame(
        [("a", (1, 2)), ("b", (1, 3)), ("a", (4, 2))], "k string, s struct<a: int, b: int>"
    )


@pytest.mark.parametrize(
    ("columns", "keys", "names"),
    [
        (lambda df: ["K", "s.a"], "('a', 1) ('a', 4) ('b', 1)", "a k s"),
        (lambda df: [[df.k, F.col("S.B")]], "('a', 2) ('b', 3)", "B k s"),
        (lambda df: [1], "('a',) ('b',)", "k s"),
    ],
    ids=["names", "columns", "number"],
)
def test_key_columns_are_given_as_to_sparks_group_by(
    engine: Engine, columns: Callable[[DataFrame], list[Any]], keys: str, names: str
) -> None:
    df = input_of(engine.session)
    grouped = engine.group(df, *columns(df))
    rows = grouped.transformWithState(
        ShowingKeys(None), "key string, names string", "Update", "None"
    )
    found = rows.collect()
    assert " ".join(sorted(row["key"] for row in found)) == keys
    assert {row["names"] for row in found} == {names}


def test_each_name_finds_its_column(session: SparkSession) -> None:
    df = input_of(session).withColumn("a.b", F.lit(1)).withColumn("ä b", F.lit(2))

    def found(*cols: object) -> tuple[str, list[str]]:
        keyed, names = with_key_columns(df, cols, job="words")
        return " ".join(names), keyed.columns

    own = ["k", "s", "a.b", "ä b"]
    assert found("k", "K", df.k, ["`k`"]) == ("k", own)
    assert found("a.b") == found("`a.b`") == found(F.col("`a.b`")) == ("a.b", own)
    assert found("Ä B") == ("ä b", own)
    assert found(df["s.a"], df.s.b) == found("s.a", "s.b") == ("a b", ["a", "b", *own])
    aliased, names = with_key_columns(df.alias("t"), ["t.k"], job="words")
    assert (names, aliased.columns) == (("k",), own)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("nope", "no column 'nope'; the DataFrame has k, s"),
        ("s.nope", "no column `s`.`nope`"),
        (F.upper, "withColumn"),
        (lambda name: F.upper(name).alias("K"), "withColumn"),
        (0, "not 0"),
        (3, "not 3"),
        (None, "not None"),
        ([], "needs a DataFrame and a column"),
    ],
)
def test_what_is_no_column_is_refused(session: SparkSession, column: Any, message: str) -> None:
    given = column("k") if callable(column) else column
    with pytest.raises(BadInputError, match=message):
        with_key_columns(input_of(session), [given], job="words")


def test_a_field_that_is_named_as_another_column_is_refused(session: SparkSession) -> None:
    df = input_of(session).selectExpr("k", "named_struct('K', k) as s")
    with pytest.raises(BadInputError, match=r"the field s\.k has the name of another column"):
        with_key_columns(df, ["s.k"], job="words")


def test_cases_are_told_apart_where_the_session_does(session: SparkSession) -> None:
    session.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(BadInputError, match="no column 'K'"):
            with_key_columns(input_of(session), ["K"], job="words")
        df = input_of(session).withColumn("K", F.lit(1))
    finally:
        session.conf.unset("spark.sql.caseSensitive")
    assert with_key_columns(df, ["K"], job="words")[1] == ("K",)
    with pytest.raises(BadInputError, match="several columns are 'k'"):
        with_key_columns(df, ["`k`"], job="words")
