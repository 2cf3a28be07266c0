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
    slot_by_subtask = slots(parallelism)
    subtask = f"int({KEY_GROUP_COLUMN} * {parallelism} div {max_parallelism})"
    slot_of_subtask = F.array(*[F.lit(slot) for slot in slot_by_subtask])
    columns = [*df.columns, KEY_GROUP_COLUMN]
    return (
        df.withColumn(KEY_GROUP_COLUMN, F.pmod(F.hash(*key_columns), F.lit(max_parallelism)))
        .withColumn(_SLOT_COLUMN, slot_of_subtask[F.expr(subtask)])
        .repartition(parallelism, _SLOT_COLUMN)
        .join(_anchor(session, slot_by_subtask).hint("shuffle_hash"), _SLOT_COLUMN, "left")
        .select(*[F.col(f"`{name}`") for name in columns])
    )


def slots(parallelism: int) -> list[int]:
    """Returns, by partition, the smallest integer that Spark's hash partitioning sends there."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < parallelism:
        found.setdefault(_spark_hash(candidate) % parallelism, candidate)
        candidate += 1
    return [found[partition] for partition in range(parallelism)]


def _spark_hash(number: int) -> int:
    """Returns Spark's `hash` of one 32-bit integer: Murmur3 with the seed 42.

    Only the constants of `slots` depend on it, and the operator refuses misplaced rows; asking
    Spark would cost every start of a query one more job.
    """
    mask = 0xFFFFFFFF

    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> (32 - bits)) & mask

    mixed = rotated(number * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    word = (rotated(42 ^ mixed, 13) * 5 + 0xE6546B64) & mask ^ 4
    word = (word ^ word >> 16) * 0x85EBCA6B & mask
    word = (word ^ word >> 13) * 0xC2B2AE35 & mask
    word ^= word >> 16
    return word - (1 << 32) if word >> 31 else word


def _anchor(session: SparkSession, slot_by_subtask: Sequence[int]) -> DataFrame:
    """Returns one row per subtask; each is cached where its subtask first runs."""
    rows = [(slot,) for slot in slot_by_subtask]
    return (
        session.createDataFrame(rows, f"{_SLOT_COLUMN} int")
        .repartition(len(rows), _SLOT_COLUMN)
        .cache()
    )


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
