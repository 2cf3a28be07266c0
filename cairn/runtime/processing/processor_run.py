"""Runs a processor on one subtask's rows of one batch. Needs no store and no metastore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)
from pyspark.sql.types import StructType

from cairn.keygroups import KeyGroupRange
from cairn.runtime.processing.grouping import KeyColumns
from cairn.runtime.processing.operator_spec import OperatorSpec
from cairn.runtime.processing.preemptive_persist import PreemptivePersist
from cairn.runtime.processing.processor_io import ProcessorIO
from cairn.runtime.processing.task_input import KeyedRows
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
    operator: OperatorSpec,
    share: Share,
    reader: Reader,
    times: BatchTimes,
    *,
    initial: Iterable[KeyedRows],
    rows: Iterable[KeyedRows],
    io: ProcessorIO,
    persist: Callable[[Overlay], PreemptivePersist] | None = None,
    lists: Lists | None = None,
) -> Overlay:
    """Runs a fresh processor over initial state rows, rows and due timers; returns the changes.

    The subtask's operator lists are changed in place; None for empty ones that nobody reads later.
    Timers fire after all rows, in order of expiry: those that are due when the first one fires,
    as in Spark. Then expired entries are removed. `io` collects the output, and is to be flushed
    after the last subtask; what `persist` makes takes changes meanwhile, and the overlay has the
    rest.
    """
    overlay = Overlay(reader)
    after_each = iter if persist is None else persist(overlay).after_each
    handle = StateHandle(operator.states, overlay, Row, times, lists)
    work = _Work(operator, share, times, handle, io, after_each)
    processor = operator.new_processor()
    processor.init(handle)  # type: ignore[arg-type]  # the same methods, not the same class
    work.initialise(processor, initial)
    # Rows before timers, as in Spark: a row may still delete the timer that is due.
    work.handle_rows(processor, rows)
    work.fire_timers(processor, _due_timers(overlay, share.key_groups, times))
    processor.close()
    has_ttl = any(variable.ttl_ms is not None for variable in operator.states.values())
    if has_ttl or operator.dropped_state_ids:  # a dropped one's index is removed as it expires
        purge_expired(overlay, share.key_groups, times.processing_ms)
    for state_id in operator.dropped_state_ids:
        _drop(overlay, share.key_groups, state_id)
    return overlay


def _due_timers(
    overlay: Overlay, key_groups: KeyGroupRange, times: BatchTimes
) -> Iterator[tuple[int, int, bytes]]:
    if times.mode is TimeMode.NONE:
        return iter(())
    is_event_time = times.mode is TimeMode.EVENT_TIME
    until_ms = times.watermark_ms if is_event_time else times.processing_ms
    return Timers(overlay).due(key_groups, until_ms)


def _drop(overlay: Overlay, key_groups: KeyGroupRange, state_id: int) -> None:
    """Removes all entries of a state variable: one seek per key group once they are removed."""
    for key_group in range(key_groups.start, key_groups.end):
        entries = overlay.under(state_prefix(key_group, state_id))
        if entries.exists():
            entries.clear()


class _Work:
    def __init__(
        self,
        operator: OperatorSpec,
        share: Share,
        times: BatchTimes,
        handle: StateHandle,
        io: ProcessorIO,
        after_each: Callable[[Iterable[Any]], Iterator[Any]],
    ) -> None:
        self.handle = handle
        self.io = io
        self._operator = operator
        self._after_each = after_each
        self._share = share
        self._timer_values = TimerValues(times.processing_ms, times.watermark_ms)
        self._key_codec = TupleCodec(operator.key_schema, name="key", row_factory=Row)

    def initialise(self, processor: StatefulProcessor, tables: Iterable[KeyedRows]) -> None:
        """Hands over initial state: each row, or each frame, on its own."""
        schema = self._operator.initial_schema or StructType()
        by_key = chain.from_iterable(
            self._by_key(keyed, self._operator.initial_keys, schema) for keyed in tables
        )
        view = self.io.key_view(self._operator.keys)
        for key, rows in self._after_each(by_key):
            shown = view(key) if view else key
            for row in rows:
                processor.handleInitialState(shown, row, self._timer_values)

    def handle_rows(self, processor: StatefulProcessor, tables: Iterable[KeyedRows]) -> None:
        """Hands over the batch's rows, key by key."""
        collect, values = self.io.collect, self._timer_values
        handle, keys, schema = (
            processor.handleInputRows,
            self._operator.keys,
            self._operator.row_schema,
        )
        set_key, encode = self.handle.set_key, self._key_codec.encode
        key_groups = self._share.max_parallelism
        view = self.io.key_view(keys)
        if view is not None:
            show, handle_shown = view, handle
            handle = lambda key, *others: handle_shown(show(key), *others)  # noqa: E731
        by_key = chain.from_iterable(self.io.by_key(keyed, keys, schema) for keyed in tables)
        for key_hash, key, rows in self._after_each(by_key):
            set_key(key_hash % key_groups, encode(key))
            collect(handle(key, rows, values))

    def fire_timers(
        self, processor: StatefulProcessor, due: Iterable[tuple[int, int, bytes]]
    ) -> None:
        """Fires timers, and removes each once its handler's output was read."""
        make_key = Row(*self._key_codec.field_names)
        for expiry_ms, key_group, key_bytes in self._after_each(due):
            # From the entry: a key without rows in this batch has no hash here.
            self.handle.set_key(key_group, key_bytes)
            key = self._key_codec.decode(key_bytes)
            self.io.collect(
                processor.handleExpiredTimer(
                    key=make_key(*key),
                    timerValues=self._timer_values,
                    expiredTimerInfo=ExpiredTimerInfo(expiry_ms),
                )
            )
            self.handle.deleteTimer(expiry_ms)

    def _by_key(
        self, keyed: KeyedRows, keys: KeyColumns, schema: StructType
    ) -> Iterator[tuple[tuple[Any, ...], Iterator[Any]]]:
        for key_hash, key, rows in self.io.by_key(keyed, keys, schema):
            self.handle.set_key(key_hash % self._share.max_parallelism, self._key_codec.encode(key))
            yield key, rows
