"""Runs a case on both engines; the reference is Spark's own operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tests.conformance.engines import Engine
from tests.fuzz.generated import DELAY_MS, INPUT, Case
from tests.fuzz.processors import Doing, DoingInFrames

_ZONE = "spark.sql.session.timeZone"
HEAD = [
    StructField("key", StringType()),
    StructField("place", IntegerType()),
    StructField("call", StringType()),
    StructField("result", StringType()),
]
Found = list[dict[str | None, list[tuple[Any, ...]]]]
"""By batch and key what the processor gave, in order."""


def difference(case: Case, session: SparkSession, directory: Path, metastore_url: str) -> str:
    """Returns where the two engines differ first; empty text where they do not."""
    found = []
    before = str(session.conf.get(_ZONE))
    session.conf.set(_ZONE, case.zone)
    try:
        for name in ("spark", "cairn"):
            of_engine = directory / f"{directory.name} {name}"  # the job is named after it
            of_engine.mkdir(parents=True)
            found.append(run(case, Engine(name, session, of_engine, metastore_url)))
    finally:
        session.conf.set(_ZONE, before)
    by_spark, by_cairn = found
    if len(by_spark) != len(by_cairn):
        return f"Spark had {len(by_spark)} batches, Cairn {len(by_cairn)}"
    for number, (ours, theirs) in enumerate(zip(by_cairn, by_spark, strict=True)):
        for key in ours.keys() | theirs.keys():
            if ours.get(key) != theirs.get(key):
                return _described(number, key, theirs.get(key, []), ours.get(key, []))
    return ""


def run(case: Case, engine: Engine) -> Found:
    """Returns what one engine gave."""
    found: list[list[Row]] = []
    for parallelism, batches in case.runs:
        rows = [[{**row, "calls": json.dumps(row["calls"])} for row in batch] for batch in batches]
        if case.is_stream:
            for batch in rows:
                engine.add_file(batch)
            found += engine.run(_transformed(case, engine, engine.read(INPUT), parallelism))
        else:
            df = engine.session.createDataFrame([*map(_values, rows[0])], INPUT).coalesce(1)
            found.append(_transformed(case, engine, df, parallelism).collect())
    return [_by_key(rows) for rows in found]


def _transformed(case: Case, engine: Engine, df: DataFrame, parallelism: int) -> DataFrame:
    df = df.selectExpr(*case.expressions())
    columns = StructType([df.schema[name] for name in case.columns])
    if case.mode == "EventTime":
        df = df.withWatermark("at", f"{DELAY_MS} milliseconds")
    output = StructType([*HEAD, *columns])
    grouped: Any = engine.group(df, "key", "part", parallelism=parallelism)
    if case.in_pandas:
        made: DataFrame = grouped.transformWithStateInPandas(
            DoingInFrames(columns, case.ttl_ms), output, "Update", case.mode
        )
    else:
        made = grouped.transformWithState(Doing(columns, case.ttl_ms), output, "Update", case.mode)
    return made


def _values(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("key", "at_ms", "calls", "picks", "key_pick"))


def _by_key(rows: list[Row]) -> dict[str | None, list[tuple[Any, ...]]]:
    found: dict[str | None, list[tuple[Any, ...]]] = {}
    for row in rows:
        key, _, *given = row
        # As text: NaN is not equal to itself.
        found.setdefault(key, []).append(tuple(map(repr, given)))
    return found


def _described(batch: int, key: str | None, theirs: list[Any], ours: list[Any]) -> str:
    lines = [f"batch {batch}, {key}: Spark has {len(theirs)} rows, Cairn {len(ours)}"]
    for place, (spark, cairn) in enumerate(zip(theirs, ours, strict=False)):
        if spark != cairn:
            lines += [f"row {place}", f"  Spark {spark}", f"  Cairn {cairn}"]
            break
    return "\n".join(lines)
