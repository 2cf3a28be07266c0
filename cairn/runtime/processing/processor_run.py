"""What a processor does with one subtask's rows of one batch. Needs no store and no metastore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)
from pyspark.sql.types import StructType

from cairn.keygroups import KeyGroupRange
from cairn.runtime.processing.grouping import KeyColumns
from cairn.runtime.processing.operator_spec import Operator
from cairn.runtime.processing.preemptive_persist import Pacing
from cairn.runtime.processing.processor_io import Form, PandasForm, RowForm
from cairn.runtime.processing.task_input import Part
from cairn.state.codec import TupleCodec
from cairn.state.entries import state_prefix
from cairn.state.handle import StateHandle
from cairn.state.operator_lists import Lists
from cairn.state.timers import Timers
from cairn.state.times import BatchTimes, TimeMode
from cairn.state.ttl import purge_expired
from cairn.state.view import Overlay, Reader


@dataclass(frozen=True, slots=True)
class Share:
    """The key groups that one subtask owns, of all that there are."""

    key_groups: KeyGroupRange
    max_parallelism: int


def process(
    operator: Operator,
    share: Share,
    reader: Reader,
    times: BatchTimes,
    *,
    initial: Iterable[Part],
    rows: Iterable[Part],
    emit: Callable[[pa.RecordBatch], None],
    pacing: Callable[[Overlay], Pacing] | None = None,
    lists: Lists | None = None,
) -> Overlay:
    """Runs a fresh processor over initial state rows, rows and due timers; returns the changes.

    The subtask's operator lists are changed in place; None for empty ones that nobody reads later.
    Timers fire after all rows, in order of expiry: those that are due when the first one fires,
    as in Spark. Then what has outlived its TTL is removed. `emit` takes the output as it comes;
    what `pacing` makes takes changes meanwhile, and the overlay has the rest.
    """
    overlay = Overlay(reader)
    paced = iter if pacing is None else pacing(overlay).paced
    handle = StateHandle(operator.states, overlay, Row, times, lists)
    work = _Work(operator, share, overlay, times, emit, handle, paced)
    processor = operator.new_processor()
    processor.init(work.handle)  # type: ignore[arg-type]  # the same methods, not the same class
    work.initialise(processor, initial)
    work.handle_rows(processor, rows)
    if times.mode is not TimeMode.NONE:
        work.fire_timers(processor)
    processor.close()
    work.form.flush()
    has_ttl = any(variable.ttl_ms is not None for variable in operator.states.values())
    if has_ttl or operator.dropped_state_ids:  # a dropped one's index goes as it expires
        purge_expired(overlay, share.key_groups, times.processing_ms)
    for state_id in operator.dropped_state_ids:
        _drop(overlay, share.key_groups, state_id)
    return overlay


def _drop(overlay: Overlay, key_groups: KeyGroupRange, state_id: int) -> None:
    """Removes all entries of a state variable: one seek per key group once they are gone."""
    for key_group in range(key_groups.start, key_groups.end):
        entries = overlay.under(state_prefix(key_group, state_id))
        if entries.exists():
            entries.clear()


class _Work:
    def __init__(
        self,
        operator: Operator,
        share: Share,
        overlay: Overlay,
        times: BatchTimes,
        emit: Callable[[pa.RecordBatch], None],
        handle: StateHandle,
        paced: Callable[[Iterable[Any]], Iterator[Any]],
    ) -> None:
        self.handle = handle
        self.form = _form(operator, emit)
        self._operator = operator
        self._paced = paced
        self._share = share
        self._times = times
        self._timer_values = TimerValues(times.processing_ms, times.watermark_ms)
        self._timers = Timers(overlay)
        self._key_codec = TupleCodec(operator.key_schema, name="key", row_factory=Row)

    def initialise(self, processor: StatefulProcessor, parts: Iterable[Part]) -> None:
        """Hands over initial state: each row, or each frame, on its own."""
        schema = self._operator.initial_schema or StructType()
        by_key = chain.from_iterable(
            self._by_key(part, self._operator.initial_keys, schema) for part in parts
        )
        for key, rows in self._paced(by_key):
            for row in rows:
                processor.handleInitialState(key, row, self._timer_values)

    def handle_rows(self, processor: StatefulProcessor, parts: Iterable[Part]) -> None:
        """Hands over the batch's rows, key by key."""
        collect, values = self.form.collect, self._timer_values
        handle, keys, schema = (
            processor.handleInputRows,
            self._operator.keys,
            self._operator.row_schema,
        )
        set_key, encode = self.handle.set_key, self._key_codec.encode
        key_groups = self._share.max_parallelism
        by_key = chain.from_iterable(self.form.by_key(part, keys, schema) for part in parts)
        for key_hash, key, rows in self._paced(by_key):
            set_key(key_hash % key_groups, encode(key))
            collect(handle(key, rows, values))

    def fire_timers(self, processor: StatefulProcessor) -> None:
        """Fires what is due, and removes each timer once its handler's output was read."""
        times = self._times
        is_event_time = times.mode is TimeMode.EVENT_TIME
        until_ms = times.watermark_ms if is_event_time else times.processing_ms
        make_key = Row(*self._key_codec.field_names)
        due = self._timers.due(self._share.key_groups, until_ms)
        for expiry_ms, key_group, key_bytes in self._paced(due):
            self.handle.set_key(key_group, key_bytes)
            key = self._key_codec.decode(key_bytes)
            self.form.collect(
                processor.handleExpiredTimer(
                    key=make_key(*key),
                    timerValues=self._timer_values,
                    expiredTimerInfo=ExpiredTimerInfo(expiry_ms),
                )
            )
            self._timers.delete(key_group, key_bytes, expiry_ms)

    def _by_key(
        self, part: Part, keys: KeyColumns, schema: StructType
    ) -> Iterator[tuple[tuple[Any, ...], Iterator[Any]]]:
        for key_hash, key, rows in self.form.by_key(part, keys, schema):
            self.handle.set_key(key_hash % self._share.max_parallelism, self._key_codec.encode(key))
            yield key, rows


def _form(operator: Operator, emit: Callable[[pa.RecordBatch], None]) -> Form:
    if operator.uses_pandas:
        return PandasForm(
            operator.output_schema,
            emit,
            timezone=operator.timezone,
            frame_rows=operator.frame_rows,
        )
    return RowForm(operator.output_schema, emit)
