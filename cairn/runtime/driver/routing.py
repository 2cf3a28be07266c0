"""Sending each row to the task of the subtask that owns it, and each task to one executor."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.processing.operator_spec import KEY_HASH_COLUMN

_SLOT_COLUMN = "__cairn_slot"
_LOCALITY = "spark.shuffle.reduceLocality.enabled"


def with_key_hash(
    df: DataFrame, key_columns: Sequence[str], *, heartbeat: bool = False
) -> DataFrame:
    """Returns the rows with the hash of their key as a column.

    With `heartbeat`, there is a row whose hash is null once a second, so that there are batches, in
    which timers fire, while the source is idle.
    """
    # Once, in the JVM: routing, key groups and grouping all read this column.
    rows = df.withColumn(KEY_HASH_COLUMN, F.hash(*[F.col(f"`{name}`") for name in key_columns]))
    if not heartbeat:
        return rows
    beats = df.sparkSession.readStream.format("rate").option("rowsPerSecond", 1).load()
    nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema]
    return rows.unionByName(beats.select(*nulls))


def route(rows: DataFrame, run: RunContext) -> DataFrame:
    """Returns rows that have their key's hash, in as many partitions as the plan has tasks.

    The key group is the hash modulo `cairn.max-parallelism`; each partition holds the rows of the
    subtasks that are its task's. Where there are several executors, a cached anchor of one row per
    task is joined on, because a task follows its cached block: so subtasks stay on one executor.
    Correctness does not depend on it.
    """
    key_groups, parallelism, tasks = run.max_parallelism, run.parallelism, run.tasks
    key_hash = f"coalesce({KEY_HASH_COLUMN}, 0)"  # a heartbeat has none; any task may have it
    # The arithmetic of `cairn.keygroups`, in SQL. Tasks refuse rows where the two disagree.
    subtask = f"pmod({key_hash}, {key_groups}) * {parallelism} div {key_groups}"
    slot_by_task = slots(tasks)
    slot_of_task = F.array(*[F.lit(slot) for slot in slot_by_task])
    slot = slot_of_task[F.expr(f"int(({subtask}) * {tasks} div {parallelism})")]
    session = rows.sparkSession
    # No anchor: with one executor, no subtask can move.
    if _has_one_executor(session):
        return rows.repartition(tasks, slot)
    return (
        # A shuffled join, not a broadcast: only its tasks follow the blocks of the cached anchor.
        rows.withColumn(_SLOT_COLUMN, slot)
        .repartition(tasks, _SLOT_COLUMN)
        .join(_anchor(session, slot_by_task).hint("shuffle_hash"), _SLOT_COLUMN, "left")
        .select(*[F.col(f"`{name}`") for name in rows.columns])
    )


def task_slots(session: SparkSession) -> int | None:
    """Returns how many tasks the application runs at once; None where that is not known yet.

    More tasks than that would take turns, at the price of a task and of a group commit each.
    """
    master = _conf(session, "spark.master")
    if match := re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master):
        return (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)
    if match := re.fullmatch(r"local-cluster\[(\d+),(\d+),\d+\]", master):
        return int(match[1]) * int(match[2])
    executors = _conf(session, "spark.executor.instances")
    cores = _conf(session, "spark.executor.cores")
    # The number of executors changes then, so the slots of this moment say nothing.
    is_elastic = _conf(session, "spark.dynamicAllocation.enabled") == "true"
    return int(executors) * int(cores) if executors and cores and not is_elastic else None


def _has_one_executor(session: SparkSession) -> bool:
    return re.fullmatch(r"local(\[.*\])?", _conf(session, "spark.master")) is not None


def _conf(session: SparkSession, key: str) -> str:
    return session.conf.get(key, "") or ""


def slots(tasks: int) -> list[int]:
    """Returns, by partition, the smallest integer that Spark's hash partitioning sends there."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < tasks:
        found.setdefault(_spark_hash(candidate) % tasks, candidate)
        candidate += 1
    return [found[partition] for partition in range(tasks)]


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


def _anchor(session: SparkSession, slot_by_task: Sequence[int]) -> DataFrame:
    """Returns one row per task, cached on as many executors as are free.

    It is computed here, not in the first batch, where the tasks that read the source hold some of
    the executors, which would then get no subtask for as long as the query runs.
    """
    rows = [(slot,) for slot in slot_by_task]
    anchor = session.createDataFrame(rows, f"{_SLOT_COLUMN} int")
    anchor = anchor.repartition(len(rows), _SLOT_COLUMN).cache()
    anchor.count()
    return anchor


def warn_if_subtasks_float(session: SparkSession) -> None:
    """Warns when Spark may move subtasks between executors in every batch."""
    locality = session.conf.get(_LOCALITY, "true")
    if not _has_one_executor(session) and locality != "false":
        warnings.warn(
            f"{_LOCALITY} is {locality}: subtasks will move between executors and rebuild their "
            f"local state there. Start the application with --conf {_LOCALITY}=false",
            stacklevel=4,
        )
