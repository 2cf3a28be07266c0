from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
from pyspark.sql import Row

from cairn.runtime.processing.rows import row_class

NAMES = ("key", "value", "with space", "count", "__hidden", "value", "asDict", "__len__", "_1")
VALUES = ("k", 1, 2, 3, 4, 5, 6, 7, 8)


def found(row: Row, name: str) -> Any:
    try:
        value = getattr(row, name)
    except AttributeError:
        return AttributeError
    return value if value in VALUES else type(value)


@pytest.mark.parametrize("name", [*NAMES, "missing", "index"])
def test_a_field_reads_as_in_a_row_that_spark_makes(name: str) -> None:
    ours = tuple.__new__(row_class(NAMES), VALUES)
    spark = Row(*NAMES)(*VALUES)
    assert found(ours, name) == found(spark, name)


def test_a_row_is_equal_copied_and_pickled_as_one_that_spark_makes() -> None:
    ours, spark = tuple.__new__(row_class(("a", "b")), (1, "x")), Row(a=1, b="x")
    assert ours == spark
    assert ours.asDict() == spark.asDict()
    assert repr(ours) == repr(spark)
    assert isinstance(ours, Row)
    for other in (copy.copy(ours), pickle.loads(pickle.dumps(ours))):  # noqa: S301
        assert (other, other.b) == (spark, "x")
    with pytest.raises(RuntimeError, match="Row is read-only"):
        ours.a = 2


def test_a_garbage_collection_meanwhile_takes_no_field_away() -> None:
    """The collector may run at each object that is made; workers died of it now and then."""
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        kinds = [row_class((f"word{i}", "window_start")) for i in range(100)]
    finally:
        gc.set_threshold(*thresholds)

    assert [tuple.__new__(kind, VALUES[:2]).window_start for kind in kinds] == [VALUES[1]] * 100
