"""Random calls through Cairn's state layer alone, against the reference: many, and no Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from cairn.keygroups import KeyGroupRange
from cairn.state.codec import TupleCodec
from cairn.state.handle import DeclaringHandle, StateHandle, VariableSpec
from cairn.state.timers import Timers
from cairn.state.times import BatchTimes, TimeMode
from cairn.state.ttl import purge_expired
from cairn.state.view import DELETE, PUT, Changes, Overlay
from tests.conformance.generated import Script, calls, scripts
from tests.conformance.reference import Reference, ScriptRow
from tests.conformance.scripts import Call, Interpreter, dump

TTL_MS = 10
KEY_GROUPS = KeyGroupRange(0, 4)
KEY = TupleCodec({"fields": [{"name": "key", "type": "string", "nullable": True}]}, name="key")


class Committed:
    """Committed state in a dict."""

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes] = {}

    def get(self, key: bytes, /) -> bytes | None:
        return self._entries.get(key)

    def scan(self, prefix: bytes, /) -> Any:
        return iter(sorted(e for e in self._entries.items() if e[0].startswith(prefix)))

    def last(self, prefix: bytes, /) -> bytes | None:
        return max((key for key in self._entries if key.startswith(prefix)), default=None)

    def apply(self, changes: Changes) -> None:
        for op, key, value in zip(changes.ops, changes.keys, changes.values, strict=True):
            if op == PUT:
                assert value is not None
                self._entries[key] = value
            elif op == DELETE:
                self._entries.pop(key, None)
            else:
                self._entries = {k: v for k, v in self._entries.items() if not k.startswith(key)}


class StateLayer:
    """Runs batches as the operator does, on Cairn's state classes."""

    def __init__(self, mode: TimeMode) -> None:
        self._mode = mode
        self._ttl_ms = TTL_MS if mode is TimeMode.PROCESSING_TIME else None
        self._committed = Committed()
        declaring = DeclaringHandle(_schema, mode)
        self.new_processor().init(declaring)  # type: ignore[arg-type]
        self._variables = {
            state.name: VariableSpec.of(state, number)
            for number, state in enumerate(declaring.declarations)
        }

    def new_processor(self) -> Interpreter:
        return Interpreter(self._ttl_ms)

    def run(self, rows: list[ScriptRow], processing_ms: int, watermark_ms: int) -> Any:
        overlay = Overlay(self._committed)
        is_timeless = self._mode is TimeMode.NONE
        moment = (-1, -1) if is_timeless else (processing_ms, watermark_ms)
        handle = StateHandle(self._variables, overlay, Row, BatchTimes(self._mode, *moment))
        processor = self.new_processor()
        processor.init(handle)  # type: ignore[arg-type]
        by_key: dict[str | None, list[Any]] = {}
        for row in rows:
            by_key.setdefault(row.key, []).append({"calls": json.dumps(row.calls)})
        output: list[Row] = []
        for name, calls_of in by_key.items():
            handle.set_key(*_key(name))
            output += processor.handleInputRows((name,), iter(calls_of), TimerValues(*moment))
        if not is_timeless:
            output += self._fire(processor, handle, Timers(overlay), moment)
            purge_expired(overlay, KEY_GROUPS, processing_ms)
        self._committed.apply(overlay.changes())
        found: dict[str | None, list[tuple[str, str]]] = {}
        for result in output:
            found.setdefault(result["key"], []).append((result["call"], result["result"]))
        return found

    def _fire(
        self, processor: Interpreter, handle: StateHandle, timers: Timers, moment: tuple[int, int]
    ) -> list[Row]:
        until_ms = moment[0] if self._mode is TimeMode.PROCESSING_TIME else moment[1]
        output: list[Row] = []
        for expiry_ms, key_group, key_bytes in timers.due(KEY_GROUPS, until_ms):
            handle.set_key(key_group, key_bytes)
            output += processor.handleExpiredTimer(
                KEY.decode(key_bytes), TimerValues(*moment), ExpiredTimerInfo(expiry_ms)
            )
            timers.delete(key_group, key_bytes, expiry_ms)
        return output


def _schema(ddl: Any) -> dict[str, Any]:
    """Returns the JSON value of a flat schema; Spark's own parser needs a JVM."""
    fields = [field.split(" ") for field in ddl.replace(" int", " integer").split(", ")]
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True} for name, kind in fields],
    }


def _key(name: str | None) -> tuple[int, bytes]:
    data = KEY.encode((name,))
    return sum(data) % len(KEY_GROUPS), data


def refreshed(number: int) -> list[Call]:
    """Sets all state with TTL: in two batches, and then never again."""
    return [
        ["value_ttl", "update", [number, "refreshed"]],
        ["list_ttl", "put", [[number]]],
        ["list_ttl", "appendValue", [number]],
        ["map_ttl", "updateValue", ["a", 1], [number]],
    ]


REFRESHED: Script = [[refreshed(1)], [refreshed(2)], [], []]
EXPIRIES = st.sampled_from([-1, 0, 1, 10, 11, 20, 1000])
BATCHES = 4
CALLS = {
    TimeMode.NONE: calls(),
    TimeMode.PROCESSING_TIME: calls(timers=EXPIRIES, ttl=True),
    TimeMode.EVENT_TIME: calls(timers=EXPIRIES),
}


def batches_of(keys: dict[str | None, Script], *, ttl: bool, timers: bool) -> list[list[ScriptRow]]:
    batches = [
        [ScriptRow(key, row) for key, script in keys.items() for row in script[number]]
        for number in range(BATCHES)
    ]
    return [*batches, [ScriptRow(key, dump(ttl=ttl, timers=timers)) for key in keys]]


@pytest.mark.parametrize("mode", [*TimeMode], ids=str)
def test_the_state_layer_does_what_the_reference_does(mode: TimeMode) -> None:
    names = st.sampled_from(["a", "b", "", None])
    moments = st.lists(st.integers(0, 12), min_size=BATCHES + 1, max_size=BATCHES + 1)

    @settings(deadline=None, max_examples=150, phases=[Phase.generate, Phase.shrink])
    @given(
        keys=st.dictionaries(names, scripts(CALLS[mode], batches=BATCHES), max_size=3),
        steps=moments,
    )
    def check(keys: dict[str | None, Script], steps: list[int]) -> None:
        layer = StateLayer(mode)
        reference = Reference(layer.new_processor, str(mode), delay_ms=0)
        has_ttl = mode is TimeMode.PROCESSING_TIME
        scripts_of = {**keys, "refreshed": REFRESHED} if has_ttl else keys
        batches = batches_of(scripts_of, ttl=has_ttl, timers=mode is not TimeMode.NONE)
        now_ms = watermark_ms = 0
        for rows, step in zip(batches, steps, strict=True):
            now_ms += step
            clock = ScriptRow("clock", [], at_ms=now_ms)  # moves the next batch's watermark
            found = layer.run([clock, *rows], now_ms, watermark_ms)
            assert found == reference.run([clock, *rows], now_ms)
            watermark_ms = max(watermark_ms, now_ms)

    check()
