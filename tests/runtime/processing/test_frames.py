from __future__ import annotations

import pandas as pd
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from cairn.errors import BadInputError
from cairn.runtime.processing.frames import frames_to_batch

SCHEMA = StructType([StructField("k", StringType()), StructField("n", LongType())])
BIG = 2**60 + 1
"""No float has this value."""


def test_a_null_in_one_frame_leaves_whole_numbers_of_others_exact() -> None:
    frames = [
        pd.DataFrame({"k": ["a"], "n": [BIG]}),
        pd.DataFrame({"k": ["b"], "n": [float("nan")]}),
        pd.DataFrame({"n": [BIG + 2], "k": ["c"]}),
    ]
    batch = frames_to_batch(frames, SCHEMA, "UTC")
    assert batch.to_pydict() == {"k": ["a", "b", "c"], "n": [BIG, None, BIG + 2]}


def test_frames_without_rows_are_no_rows() -> None:
    frames = [pd.DataFrame(), pd.DataFrame({"k": []})]
    assert frames_to_batch(frames, SCHEMA, "UTC").num_rows == 0


def test_a_frame_that_lacks_a_column_is_refused_with_its_name() -> None:
    with pytest.raises(BadInputError, match=r"lacks the columns n; it has k"):
        frames_to_batch([pd.DataFrame({"k": ["a"]})], SCHEMA, "UTC")
