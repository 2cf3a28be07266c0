"""Sending each row to the subtask that owns its key group, and each subtask to one executor."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cairn.runtime.plan import KEY_GROUP_COLUMN

_SLOT_COLUMN = "__cairn_slot"
_LOCALITY = "spark.shuffle.reduceLocality.enabled"


def route(
    df: DataFrame, key_columns: Sequence[str], *, parallelism: int, max_parallelism: int
) -> DataFrame:
    """Returns the rows in `parallelism` partitions by key group, with the key group as a column.

    The key group is `pmod(hash(key), max_parallelism)`, computed by Spark. A cached anchor of one
    row per subtask is joined on, because a task follows its cached block: so a subtask stays on
    one executor. Correctness does not depend on it.
    """
    session = df.sparkSession
    slots = _slots(session, parallelism)
    subtask = f"int({KEY_GROUP_COLUMN} * {parallelism} div {max_parallelism})"
    slot_of_subtask = F.array(*[F.lit(slot) for slot in slots])
    columns = [*df.columns, KEY_GROUP_COLUMN]
    return (
        df.withColumn(KEY_GROUP_COLUMN, F.pmod(F.hash(*key_columns), F.lit(max_parallelism)))
        .withColumn(_SLOT_COLUMN, slot_of_subtask[F.expr(subtask)])
        .repartition(parallelism, _SLOT_COLUMN)
        .join(_anchor(session, slots).hint("shuffle_hash"), _SLOT_COLUMN, "left")
        .select(*[F.col(f"`{name}`") for name in columns])
    )


def _slots(session: SparkSession, parallelism: int) -> list[int]:
    """Returns, by partition, an integer that Spark's own hash partitioning sends there."""
    found: dict[int, int] = {}
    first, count = 0, 64 * parallelism
    while len(found) < parallelism:
        candidates = session.range(first, first + count, 1, 1).selectExpr(
            "int(id) AS slot", f"pmod(hash(int(id)), {parallelism}) AS partition"
        )
        for row in candidates.collect():
            found.setdefault(row["partition"], row["slot"])
        first += count
    return [found[partition] for partition in range(parallelism)]


def _anchor(session: SparkSession, slots: Sequence[int]) -> DataFrame:
    rows = [(slot,) for slot in slots]
    anchor = (
        session.createDataFrame(rows, f"{_SLOT_COLUMN} int")
        .repartition(len(slots), _SLOT_COLUMN)
        .cache()
    )
    anchor.count()
    return anchor


def warn_if_subtasks_float(session: SparkSession) -> None:
    """Warns when Spark may move subtasks between executors in every batch."""
    master = session.conf.get("spark.master", "") or ""
    locality = session.conf.get(_LOCALITY, "true")
    if not master.startswith("local[") and master != "local" and locality != "false":
        warnings.warn(
            f"{_LOCALITY} is {locality}: subtasks will move between executors and rebuild their "
            f"local state there. Start the application with --conf {_LOCALITY}=false",
            stacklevel=4,
        )
