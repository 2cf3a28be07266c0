"""Operators and their input without Spark, for tests of what one task does in a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from cairn.runtime.processing.operator_spec import (
    INPUT_COLUMN,
    KEY_HASH_COLUMN,
    EventTime,
    OperatorSpec,
)
from cairn.runtime.processing.spill import SpillDirectory
from cairn.runtime.processing.task_input import TaskInput, subtasks_by_key_group
from cairn.state.handle import StateDeclaration, VariableSpec
from cairn.state.times import TimeMode
from cairn.state.view import DELETE, PUT, Changes

MAX_PARALLELISM = 8
ROWS = StructType().add("key", "string").add("value", "long").add("at", "timestamp")
OUTPUT = StructType().add("key", "string").add("n", "long")
ARROW = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        (KEY_HASH_COLUMN, pa.int32()),
        (INPUT_COLUMN, pa.int32()),
    ]
)
AT = EventTime(("at",), ("at",))

InputRow = tuple[str | None, int, int | None, int | None, int]
"""Key, value, event time in microseconds, the key's hash, and the input it came from."""


def operator_of(
    processor: StatefulProcessor | None = None,
    *states: StateDeclaration,
    time_mode: TimeMode = TimeMode.NONE,
    event_time: EventTime | None = None,
    inputs: int = 1,
) -> OperatorSpec:
    """Returns an operator over rows of `ROWS`, grouped by `key`."""
    return OperatorSpec(
        job="words",
        processor=cloudpickle.dumps(processor),  # type: ignore[no-untyped-call]
        uses_pandas=False,
        time_mode=time_mode,
        key_columns=("key",),
        key_schema=StructType([ROWS["key"]]).jsonValue(),
        row_schema=ROWS,
        output_schema=OUTPUT,
        states={s.name: VariableSpec.of(s, number) for number, s in enumerate(states)},
        event_time=event_time,
        inputs=inputs,
    )


def batch_of(rows: Sequence[InputRow]) -> pa.RecordBatch:
    """Returns rows as Spark gives them to a task."""
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(ARROW)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)


def task_input_of(
    spill: SpillDirectory,
    *,
    operator: OperatorSpec | None = None,
    parallelism: int = 1,
    subtasks: range | None = None,
    late_ms: int | None = None,
    memory_bytes: int = 1 << 20,
) -> TaskInput:
    """Returns the task_input of a task that does some subtasks, by default all of them."""
    return TaskInput(
        operator or operator_of(),
        subtasks_by_key_group(parallelism, max(parallelism, MAX_PARALLELISM)),
        range(parallelism) if subtasks is None else subtasks,
        late_ms=late_ms,
        spill=spill,
        memory_bytes=memory_bytes,
    )


class Committed:
    """Committed state in a dict: a Reader, which can take a batch's changes."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}

    def get(self, key: bytes, /) -> bytes | None:
        return self.entries.get(key)

    def scan(self, prefix: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(i for i in self.entries.items() if i[0].startswith(prefix)))

    def last(self, prefix: bytes, /) -> bytes | None:
        return max((key for key in self.entries if key.startswith(prefix)), default=None)

    def apply(self, changes: Changes) -> None:
        """Makes a batch's changes."""
        for op, key, value in zip(changes.ops, changes.keys, changes.values, strict=True):
            if op == PUT:
                assert value is not None
                self.entries[key] = value
                continue
            for found in list(self.entries):
                if found == key or (op != DELETE and found.startswith(key)):
                    del self.entries[found]
