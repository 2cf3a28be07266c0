"""Which partition a slot's row goes to."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cairn.runtime.driver.routing import slots


@pytest.mark.spark
@pytest.mark.parametrize("parallelism", [1, 2, 7, 40])
def test_spark_sends_each_slot_to_its_own_partition(spark: SparkSession, parallelism: int) -> None:
    found = slots(parallelism)
    placed = (
        spark.createDataFrame([(slot,) for slot in found], "slot int")
        .repartition(parallelism, "slot")
        .select("slot", F.spark_partition_id().alias("partition"))
    )
    assert {row.slot: row.partition for row in placed.collect()} == {
        slot: partition for partition, slot in enumerate(found)
    }
