"""What transformWithState refuses when the plan is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from cairn.errors import BadInputError
from cairn.runtime.driver.job import GroupedData
from tests.streams.streams import OUTPUT, Remember, Settings

pytestmark = pytest.mark.spark

MakeStream = Callable[..., Settings]


class Expiring(Remember):
    """Has one more variable, with TTL."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        handle.getValueState("expiring", "n long", ttlDurationMs=1000)


def timed(spark: SparkSession, settings: Settings) -> DataFrame:
    """Returns a stream of rows with a time."""
    return spark.readStream.schema("key string, value long, at timestamp").json(settings.source)


def test_what_this_version_does_not_support_is_refused(
    spark: SparkSession, stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    settings = stream(1)
    job, rows = settings.cairn_job(), timed(spark, settings)
    streamed, known = job.groupBy(rows, "key"), spark.createDataFrame([("a", 1)], "k string, n int")

    def refused(message: str, grouped: GroupedData = streamed, **changes: Any) -> None:
        arguments = {"outputMode": "Update", "timeMode": "None", **changes}
        with pytest.raises(BadInputError, match=message):
            grouped.transformWithState(arguments.pop("processor", Remember()), OUTPUT, **arguments)

    refused("outputMode is 'Complete'; allowed: 'Append' or 'Update'", outputMode="Complete")
    refused("timeMode is 'Sometimes'; allowed: 'None', 'ProcessingTime'", timeMode="Sometimes")
    refused("expiring.*ttlDurationMs is 1000 in timeMode none", processor=Expiring())
    refused("methods init, handleInputRows, close.*found <class", processor=Remember)
    refused("methods init, handleInputRows, close.*found 7", processor=7)
    refused("expiring.*ttlDurationMs", processor=Expiring(), timeMode="EventTime")
    assert "no input has a watermark, so timers will never fire" in caplog.text
    refused("initialState is a DataFrame grouped by the key.*found Data", initialState=known)
    refused("initialState is a batch DataFrame", initialState=rows.groupBy("key"))
    refused("columns of other types.*n of .*for key of", initialState=job.groupBy(known, "n"))
    refused("columns of other types", initialState=known.groupBy("k", "n"))
    watermarked = rows.withWatermark("at", "1 second")
    two = watermarked.withColumn("w", F.window("at", "1 hour"))
    refused("several columns have event time: at, w", job.groupBy(two, "key"))
    union = watermarked.union(watermarked.withWatermark("at", "1 minute"))
    refused(r"several withWatermark.*job.groupBy\(\[first, second\]", job.groupBy(union, "key"))
    refused("each input needs withWatermark", job.groupBy([rows, watermarked], "key"))
    refused(
        "eventTimeColumnName is 'when', which has to be a timestamp of the output",
        eventTimeColumnName="when",
    )
