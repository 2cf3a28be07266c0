"""The operator, as the driver describes it to every task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DataType, StructType

from cairn.state.handle import VariableSpec
from cairn.state.times import TimeMode

KEY_HASH_COLUMN = "__cairn_key_hash"
"""Spark's 32-bit hash of the key; null in a heartbeat's row."""
UNLIMITED = 2**31 - 1
"""Rows or bytes of a frame, where Spark has no limit."""
INPUT_COLUMN = "__cairn_input"
"""The input of a row, of several, from 0."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """Where rows have their event time: a timestamp, or a window of time.

    `latest_of` is the column whose greatest value moves the watermark, `late_by` the one that the
    watermark is compared with; they differ where the column is a window.
    """

    late_by: tuple[str, ...]
    latest_of: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSettings:
    """The session's settings of pandas that Spark's own operator honours."""

    timezone: str = "UTC"
    """The session's, which timestamps in frames are in; as Arrow names it."""
    max_rows: int = 10_000
    """Rows of a frame, at most."""
    max_bytes: int = UNLIMITED
    """A frame ends with the row that reaches this size in Arrow, by the average of the rows."""
    is_safe: bool = True
    """Whether a value that would change is refused."""
    by_name: bool = True
    """Whether columns of output frames are taken by name, not by position."""
    ints_to_decimals: bool = False
    """Whether a decimal column takes whole numbers."""
    nullable_ints: bool = False
    """Whether whole numbers have pandas' nullable types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """A stateful operator: its processor, its time mode and its columns.

    `processor` is the user's processor, pickled: each subtask gets a copy of its own.
    """

    job: str
    processor: bytes = field(repr=False)
    uses_pandas: bool
    time_mode: TimeMode
    key_columns: tuple[str, ...]
    key_schema: dict[str, Any]
    row_schema: StructType
    """Of the rows that the processor sees."""
    output_schema: StructType
    states: Mapping[str, VariableSpec]
    dropped_state_ids: tuple[int, ...] = ()
    event_time: EventTime | None = None
    emitted_time: str | None = None
    """The output column that operators downstream take for event time."""
    inputs: int = 1
    initial_schema: StructType | None = None
    initial_key_columns: tuple[str, ...] = ()
    frames: FrameSettings = field(default_factory=FrameSettings)

    def new_processor(self) -> StatefulProcessor:
        """Returns a copy of the processor as the user gave it."""
        # Of the user's own, pickled by the driver; nothing is unpickled from storage.
        processor: StatefulProcessor = cloudpickle.loads(self.processor)
        return processor

    @property
    def initial_keys(self) -> list[tuple[str, DataType]]:
        """The key's columns in initial state rows: name and type."""
        types = [data_type for _, data_type in self.keys]
        return list(zip(self.initial_key_columns, types, strict=True))

    @property
    def keys(self) -> list[tuple[str, DataType]]:
        """The key's columns in the rows: name and type."""
        fields = StructType.fromJson(self.key_schema).fields
        return [(c, field.dataType) for c, field in zip(self.key_columns, fields, strict=True)]
