"""What is wrong in a processor ends its task, and the message says what: Cairn without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from cairn.keygroups import KeyGroupRange
from cairn.runtime.processing.processor_io import io_of
from cairn.runtime.processing.processor_run import Share, process
from cairn.runtime.processing.task_input import KeyedRows
from cairn.state.handle import StateDeclaration
from cairn.state.times import BatchTimes, TimeMode
from tests.conformance.processors import Faulty
from tests.runtime.processing.operators import (
    MAX_PARALLELISM,
    ROWS,
    Committed,
    batch_of,
    operator_of,
)

KNOWN = StateDeclaration(
    name="known", kind="value", value_schema=StructType().add("n", "long").jsonValue()
)


class Fault(NamedTuple):
    """A fault, and what the message says."""

    name: str
    message: str
    in_pandas: bool = False
    has_initial: bool = False

    def __str__(self) -> str:
        return self.name


FAULTS = [
    Fault("raise in rows", "boom in rows"),
    Fault("raise in timer", "boom in timer"),
    Fault("none in timer", "NoneType"),
    Fault("raise in initial state", "boom in initial", has_initial=True),
    Fault("raise in close", "boom in close"),
    Fault("dicts", "a Row or a tuple; found dict"),
    Fault("text for a long", "output column n"),
    Fault("frame", "DataFrame", in_pandas=True),
    Fault("frame without a column", "lacks the columns n", in_pandas=True),
    Fault("frame of other types", "column n|column 'n'", in_pandas=True),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_ends_the_task_with_what_is_wrong(fault: Fault) -> None:
    operator = replace(
        operator_of(Faulty(fault.name), KNOWN, time_mode=TimeMode.PROCESSING_TIME),
        uses_pandas=fault.in_pandas,
        initial_schema=ROWS if fault.has_initial else None,
        initial_key_columns=("key",) if fault.has_initial else (),
    )
    rows = [
        KeyedRows([pa.Table.from_batches([batch_of([("a", 1, None, 7, 0)])])], is_one_key=False)
    ]

    def run() -> None:
        io = io_of(operator, lambda batch: None)
        process(
            operator,
            Share(KeyGroupRange(0, MAX_PARALLELISM), MAX_PARALLELISM),
            Committed(),
            BatchTimes(TimeMode.PROCESSING_TIME, 1_000, 0),
            initial=rows if fault.has_initial else [],
            rows=rows,
            io=io,
        )
        io.flush()

    with pytest.raises(Exception, match=fault.message):
        run()
