"""What a stream uploads early is as its option says, and its state is right either way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from cairn.catalog.catalog import Catalog
from tests.streams.streams import Settings, expected_state, newest_state, remembered, start

pytestmark = pytest.mark.spark


def parts(settings: Settings) -> Mapping[tuple[int, int], Any]:
    """Returns number of parts, and of their files, by checkpoint and subtask."""
    with Catalog(settings.metastore).begin() as connection:
        rows = connection.execute(
            text(
                "SELECT first_checkpoint, subtask, count(*), count(DISTINCT file_id)"
                " FROM cairn.segments WHERE kind = 'changelog' GROUP BY 1, 2"
            )
        )
        return {(row[0], row[1]): (row[2], row[3]) for row in rows}


@pytest.mark.parametrize(("threshold", "is_early"), [("1 kb", True), ("5 mb", False)])
def test_a_batch_is_uploaded_in_segments_of_the_threshold(
    spark: SparkSession, stream: Callable[..., Settings], threshold: str, is_early: bool
) -> None:
    option = {"cairn.changelog.dstl.preemptive-persist-threshold": threshold}
    settings = stream(2, parallelism=1, options=option)
    start(remembered(spark, settings), settings).awaitTermination()
    assert newest_state(settings.metastore) == expected_state(2)
    found = parts(settings)
    assert len(found) == 2
    for number, files in found.values():
        assert files <= number
        assert 1 < number < 10 if is_early else number == 1
