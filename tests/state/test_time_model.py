"""Random work with TTL and timers over batches whose time goes on, against plain dicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.keygroups import KeyGroupRange
from cairn.segments.format import decode, encode
from cairn.state.entries import (
    LAST_MS,
    TIME_BYTES,
    TIMERS,
    TIMERS_BY_EXPIRY,
    TTL_BY_EXPIRY,
    decode_time,
    split,
)
from cairn.state.handle import StateHandle, StateKind, VariableSpec
from cairn.state.timers import Timers
from cairn.state.times import BatchTimes, TimeMode
from cairn.state.ttl import purge_expired
from cairn.state.view import Overlay

if TYPE_CHECKING:
    from tests.state.conftest import DictState

ALL = KeyGroupRange(0, 3)
NUMBER = {"fields": [{"name": "n", "type": "long", "nullable": True}]}
KINDS: dict[str, StateKind] = {"value": "value", "list": "list", "map": "map", "plain": "map"}
KEYS = [(0, b"\x91\x01"), (0, b"\x91\x01\x00"), (1, b"\x91\x01"), (2, b"\x91k")]

numbers = st.tuples(st.integers(0, 3))
times = st.integers(-3, 120)
calls = st.one_of(
    st.tuples(st.just("value"), st.just("update"), numbers),
    st.tuples(st.just("list"), st.just("appendValue"), numbers),
    st.tuples(
        st.just("list"), st.sampled_from(["put", "appendList"]), st.lists(numbers, max_size=3)
    ),
    st.tuples(st.sampled_from(["map", "plain"]), st.just("updateValue"), numbers, numbers),
    st.tuples(st.sampled_from(["map", "plain"]), st.just("removeKey"), numbers),
    st.tuples(st.sampled_from(list(KINDS)), st.just("clear")),
    st.tuples(st.just("timers"), st.sampled_from(["registerTimer", "deleteTimer"]), times),
)
batches = st.tuples(
    st.integers(0, 30),
    st.sampled_from([5, 20, 60]),
    st.lists(st.tuples(st.sampled_from(KEYS), calls), max_size=10),
)


@dataclass
class Model:
    """One key's values with their expiry, as stored: expired ones stay until they are purged."""

    value: list[tuple[Any, int]] = field(default_factory=list)
    list: list[tuple[Any, int]] = field(default_factory=list)
    map: dict[Any, tuple[Any, int]] = field(default_factory=dict)
    plain: dict[Any, Any] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)

    def call(self, expiry_ms: int, variable: str, method: str, *args: Any) -> None:
        if variable == "timers":
            (self.timers.add if method == "registerTimer" else self.timers.discard)(args[0])
        elif method == "clear":
            getattr(self, variable).clear()
        elif method == "removeKey":
            getattr(self, variable).pop(args[0], None)
        elif variable == "plain":
            self.plain[args[0]] = args[1]
        elif variable == "map":
            self.map[args[0]] = (args[1], expiry_ms)
        elif variable == "value":
            self.value[:] = [(args[0], expiry_ms)]
        else:
            if method == "put":
                self.list.clear()
            added = [args[0]] if method == "appendValue" else args[0]
            self.list += [(element, expiry_ms) for element in added]

    def check(self, state: dict[str, Any], handle: StateHandle, now_ms: int) -> None:
        value = [value for value, expiry_ms in self.value if expiry_ms > now_ms]
        assert state["value"].get() == (value[0] if value else None)
        assert state["value"].exists() == bool(value)
        elements = [element for element, expiry_ms in self.list if expiry_ms > now_ms]
        assert list(state["list"].get()) == elements
        assert state["list"].exists() == bool(elements)
        live = {key: value for key, (value, expiry_ms) in self.map.items() if expiry_ms > now_ms}
        for name, expected in (("map", live), ("plain", self.plain)):
            assert dict(state[name].iterator()) == expected
            assert set(state[name].keys()) == set(expected)
            assert Counter(state[name].values()) == Counter(expected.values())
            assert state[name].exists() == bool(expected)
            for key in [(0,), (1,), (9,)]:
                assert state[name].getValue(key) == expected.get(key)
                assert state[name].containsKey(key) == (key in expected)
        assert list(handle.listTimers()) == sorted(self.timers)

    def purge(self, now_ms: int) -> int:
        """Forgets what has expired; returns how much."""
        before = self.stored()
        self.value = [item for item in self.value if item[1] > now_ms]
        self.list = [item for item in self.list if item[1] > now_ms]
        self.map = {key: item for key, item in self.map.items() if item[1] > now_ms}
        return before - self.stored()

    def stored(self) -> int:
        return len(self.value) + len(self.list) + len(self.map)


def open_batch(
    committed: DictState, now_ms: int, ttl_ms: int
) -> tuple[Overlay, StateHandle, dict[str, Any]]:
    overlay = Overlay(committed)
    specs = {
        name: VariableSpec(
            name=name,
            kind=kind,
            value_schema=NUMBER,
            user_key_schema=NUMBER if kind == "map" else None,
            ttl_ms=None if name == "plain" else ttl_ms,
            state_id=state_id,
        )
        for state_id, (name, kind) in enumerate(KINDS.items())
    }
    times = BatchTimes(TimeMode.PROCESSING_TIME, now_ms, 0)
    handle = StateHandle(specs, overlay, times=times)
    state = {
        "value": handle.getValueState("value", NUMBER, ttl_ms),
        "list": handle.getListState("list", NUMBER, ttl_ms),
        "map": handle.getMapState("map", NUMBER, NUMBER, ttl_ms),
        "plain": handle.getMapState("plain", NUMBER, NUMBER),
    }
    return overlay, handle, state


def commit(overlay: Overlay, committed: DictState) -> None:
    changes = overlay.changes()
    assert changes.keys == sorted(changes.keys)
    data = encode(changes, metadata={"job": "model"})
    for decoded in decode(data):
        committed.apply(decoded)


def check_indexes(committed: DictState, models: dict[Any, Model], now_ms: int) -> None:
    """Checks that what is stored has one matching index entry each, and no other is due."""
    stored, indexed = Counter[bytes](), set()
    for key, data in committed.entries.items():
        entry = split(key)
        if entry.state_id == TTL_BY_EXPIRY:
            assert decode_time(entry.suffix) > now_ms
            indexed.add((entry.suffix[:TIME_BYTES], key[:2] + entry.suffix[TIME_BYTES:]))
        elif entry.state_id < list(KINDS).index("plain"):
            assert decode_time(data) > now_ms
            stored[key] += 1
    for key in stored:
        expiry, at = committed.entries[key][:TIME_BYTES], committed.entries[key][TIME_BYTES:][:8]
        assert at <= expiry
        assert (at, key) in indexed
    assert len(stored) == sum(model.stored() for model in models.values())
    by_key = [split(key) for key in committed.entries if split(key).state_id == TIMERS]
    by_expiry = [split(key) for key in committed.entries if split(key).state_id == TIMERS_BY_EXPIRY]
    assert {(e.key_group, e.suffix + e.key) for e in by_key} == {
        (e.key_group, e.suffix) for e in by_expiry
    }


@settings(deadline=None)
@given(work=st.lists(batches, min_size=1, max_size=5))
def test_state_with_ttl_and_timers_equals_the_model_as_time_passes(
    make_committed: type[DictState], work: list[tuple[int, int, list[Any]]]
) -> None:
    committed, models, now_ms = make_committed(), {key: Model() for key in KEYS}, 0
    for passed_ms, ttl_ms, batch in work:
        now_ms += passed_ms
        overlay, handle, state = open_batch(committed, now_ms, ttl_ms)
        for key, (variable, method, *args) in batch:
            handle.set_key(*key)
            getattr(state.get(variable, handle), method)(*args)
            models[key].call(now_ms + ttl_ms, variable, method, *args)
            models[key].check(state, handle, now_ms)
        due = [(at, *key) for key in KEYS for at in models[key].timers if at <= now_ms]
        timers = Timers(overlay)
        fired = list(timers.due(ALL, now_ms))
        assert fired == sorted(due)
        for expiry_ms, key_group, key_bytes in fired:
            assert timers.exists(key_group, key_bytes, expiry_ms)
            timers.delete(key_group, key_bytes, expiry_ms)
            models[key_group, key_bytes].timers.remove(expiry_ms)
        assert purge_expired(overlay, ALL, now_ms) == sum(
            model.purge(now_ms) for model in models.values()
        )
        commit(overlay, committed)
        check_indexes(committed, models, now_ms)
        _, handle, state = open_batch(committed, now_ms, ttl_ms)
        for key, model in models.items():
            handle.set_key(*key)
            model.check(state, handle, now_ms)
    overlay, _, _ = open_batch(committed, now_ms, 1)
    purge_expired(overlay, ALL, LAST_MS)
    commit(overlay, committed)
    left = {split(key).state_id for key in committed.entries}
    assert left <= {list(KINDS).index("plain"), TIMERS, TIMERS_BY_EXPIRY}
