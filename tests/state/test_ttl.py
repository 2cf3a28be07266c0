from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row

from cairn.errors import BadInputError
from cairn.keygroups import KeyGroupRange
from cairn.state.entries import LAST_MS, TTL_BY_EXPIRY, split
from cairn.state.handle import DeclaringHandle, StateHandle, VariableSpec
from cairn.state.times import BatchTimes, TimeMode
from cairn.state.ttl import purge_expired
from cairn.state.view import Overlay

if TYPE_CHECKING:
    from tests.state.conftest import DictState

NUMBER = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True}]}
KEY, TTL_MS = (5, b"\x91\x01"), 100
ALL = KeyGroupRange(0, 8)


class Batch:
    """A batch at a time over committed state, with a value, a list and a map under KEY."""

    def __init__(self, committed: DictState, now_ms: int, ttl_ms: int = TTL_MS) -> None:
        self.committed = committed
        self.now_ms = now_ms
        self.overlay = Overlay(committed)
        times = BatchTimes(TimeMode.PROCESSING_TIME, now_ms, 0)
        specs = {
            name: VariableSpec(
                name=name,
                kind=kind,  # type: ignore[arg-type]
                value_schema=NUMBER,
                user_key_schema=NUMBER if kind == "map" else None,
                ttl_ms=ttl_ms,
                state_id=state_id,
            )
            for state_id, (name, kind) in enumerate([("v", "value"), ("l", "list"), ("m", "map")])
        }
        handle = StateHandle(specs, self.overlay, row_factory=Row, times=times)
        self.value: Any = handle.getValueState("v", "n long", ttl_ms)
        self.list: Any = handle.getListState("l", "n long", ttl_ms)
        self.map: Any = handle.getMapState("m", "n long", "n long", ttl_ms)
        handle.set_key(*KEY)

    def commit(self) -> int:
        """Purges and commits; returns how many entries were removed."""
        removed = purge_expired(self.overlay, ALL, self.now_ms)
        self.committed.apply(self.overlay.changes())
        return removed


def index_entries(committed: DictState) -> int:
    return sum(split(key).state_id == TTL_BY_EXPIRY for key in committed.entries)


def test_a_value_is_there_until_its_expiry_and_not_at_it(committed: DictState) -> None:
    batch = Batch(committed, 1_000)
    batch.value.update((1,))
    assert (batch.value.get(), batch.value.exists()) == ((1,), True)
    assert batch.commit() == 0
    batch = Batch(committed, 1_099)
    assert (batch.value.get(), batch.value.exists()) == ((1,), True)
    assert batch.commit() == 0
    batch = Batch(committed, 1_100)
    assert (batch.value.get(), batch.value.exists()) == (None, False)
    assert batch.commit() == 1
    assert committed.entries == {}


def test_setting_a_value_starts_its_time_anew(committed: DictState) -> None:
    for now_ms in (0, 90, 180):
        batch = Batch(committed, now_ms)
        batch.value.update((now_ms,))
        batch.commit()
    batch = Batch(committed, 270)
    assert batch.value.get() == (180,)
    batch.commit()
    assert Batch(committed, 280).value.get() is None


def test_each_element_of_a_list_expires_on_its_own(committed: DictState) -> None:
    batch = Batch(committed, 0)
    batch.list.put([(1,), (2,)])
    batch.commit()
    batch = Batch(committed, 50)
    batch.list.appendValue((3,))
    batch.list.appendList([(4,)])
    batch.commit()
    batch = Batch(committed, 100)
    assert list(batch.list.get()) == [(3,), (4,)]
    batch.list.appendValue((5,))
    assert batch.commit() == 2
    batch = Batch(committed, 150)
    assert list(batch.list.get()) == [(5,)]
    batch = Batch(committed, 200)
    assert not batch.list.exists()
    assert batch.commit() == 3


def test_each_user_key_of_a_map_expires_on_its_own(committed: DictState) -> None:
    batch = Batch(committed, 0)
    for number in (1, 2):
        batch.map.updateValue((number,), (number,))
    batch.commit()
    batch = Batch(committed, 50)
    batch.map.updateValue((2,), (20,))
    batch.commit()
    batch = Batch(committed, 100)
    assert (batch.map.getValue((1,)), batch.map.containsKey((1,))) == (None, False)
    assert batch.map.getValue((2,)).n == 20
    assert list(batch.map.iterator()) == [((2,), (20,))]
    assert (list(batch.map.keys()), list(batch.map.values())) == ([(2,)], [(20,)])
    assert batch.commit() == 1
    batch = Batch(committed, 150)
    assert not batch.map.exists()
    assert batch.commit() == 1
    assert committed.entries == {}


def test_an_expired_entry_that_is_set_before_it_is_purged_lives_on(committed: DictState) -> None:
    batch = Batch(committed, 0)
    batch.value.update((1,))
    batch.commit()
    batch = Batch(committed, 500)
    batch.value.update((2,))
    assert batch.commit() == 0
    assert Batch(committed, 599).value.get() == (2,)
    assert Batch(committed, 600).commit() == 1


def test_setting_an_entry_again_writes_no_index_entry(committed: DictState) -> None:
    for now_ms in range(90):
        batch = Batch(committed, now_ms)
        batch.value.update((now_ms,))
        batch.map.updateValue((1,), (now_ms,))
        changed = [split(key).state_id for key in batch.overlay.changes().keys]
        assert (TTL_BY_EXPIRY in changed) == (now_ms == 0)
        batch.commit()
        assert index_entries(committed) == 2


def test_a_cleared_entry_leaves_a_stale_index_entry_that_goes_in_time(
    committed: DictState,
) -> None:
    batch = Batch(committed, 0)
    batch.value.update((1,))
    batch.list.put([(1,)])
    batch.map.updateValue((1,), (1,))
    batch.commit()
    batch = Batch(committed, 50)
    batch.value.clear()
    batch.list.clear()
    batch.map.removeKey((1,))
    batch.value.update((2,))
    batch.commit()
    assert index_entries(committed) == 4
    batch = Batch(committed, 100)
    assert batch.commit() == 0
    assert {split(key).state_id for key in batch.overlay.changes().keys} == {TTL_BY_EXPIRY}
    assert Batch(committed, 149).value.get() == (2,)
    assert index_entries(committed) == 1


@pytest.mark.parametrize(("ttl_ms", "expiry_ms"), [(10, 60), (1_000, 1_050)])
def test_another_ttl_of_a_later_run_counts_for_what_is_set_in_it(
    committed: DictState, ttl_ms: int, expiry_ms: int
) -> None:
    batch = Batch(committed, 0)
    batch.value.update((1,))
    batch.map.updateValue((1,), (1,))
    batch.commit()
    batch = Batch(committed, 50, ttl_ms)
    batch.value.update((2,))
    batch.commit()
    batch = Batch(committed, expiry_ms - 1, ttl_ms)
    assert batch.value.get() == (2,)
    batch.commit()
    assert Batch(committed, expiry_ms, ttl_ms).commit() == 1
    assert Batch(committed, 99, ttl_ms).map.containsKey((1,)) == (expiry_ms < 100)


def test_a_ttl_beyond_all_times_never_expires(committed: DictState) -> None:
    batch = Batch(committed, 1_000, LAST_MS)
    batch.value.update((1,))
    batch.commit()
    assert Batch(committed, 2**60, LAST_MS).value.get() == (1,)


def test_purging_costs_a_scan_per_key_group_and_what_is_due(committed: DictState) -> None:
    for now_ms in (0, 50):
        batch = Batch(committed, now_ms)
        batch.list.appendList([(number,) for number in range(500)])
        batch.commit()
    batch = Batch(committed, 100)
    committed.reads.clear()
    committed.scanned = 0
    assert batch.commit() == 500
    assert committed.reads.count("scan") == len(ALL)
    assert committed.scanned == 501


@pytest.mark.parametrize(
    "call",
    [
        lambda handle: handle.getValueState("v", "n long", 1000),
        lambda handle: handle.getListState("l", "n long", ttlDurationMs=1000),
        lambda handle: handle.getMapState("m", "n long", "n long", 1000),
    ],
)
@pytest.mark.parametrize("mode", [TimeMode.NONE, TimeMode.EVENT_TIME])
def test_ttl_counts_processing_time_only(
    committed: DictState, call: Callable[[Any], Any], mode: TimeMode
) -> None:
    in_task = StateHandle({}, Overlay(committed), times=BatchTimes(mode, 1, 1))
    for handle in (DeclaringHandle(lambda schema: NUMBER, mode), in_task):
        with pytest.raises(BadInputError, match=f"ttlDurationMs is 1000 in timeMode {mode};"):
            call(handle)


def test_ttl_of_0_is_none_as_in_spark() -> None:
    handle = DeclaringHandle(lambda schema: NUMBER)
    handle.getValueState("v", "n long", 0)
    assert handle.declarations[0].ttl_ms is None


@pytest.mark.parametrize("ttl_ms", [-1, 1.5, "1", True, False])
def test_ttl_that_is_no_duration_is_refused(ttl_ms: Any) -> None:
    handle = DeclaringHandle(lambda schema: NUMBER, TimeMode.PROCESSING_TIME)
    with pytest.raises(BadInputError, match="it has to be an int above 0"):
        handle.getValueState("v", "n long", ttl_ms)


def test_declared_ttl_is_recorded_and_has_to_be_that_of_the_plan(committed: DictState) -> None:
    declaring = DeclaringHandle(lambda schema: NUMBER, TimeMode.PROCESSING_TIME)
    declaring.getValueState("v", "n long", 1000)
    declaring.getListState("l", "n long")
    assert [declaration.ttl_ms for declaration in declaring.declarations] == [1000, None]
    specs = {d.name: VariableSpec.of(d, i) for i, d in enumerate(declaring.declarations)}
    times = BatchTimes(TimeMode.PROCESSING_TIME, 1, 1)
    handle = StateHandle(specs, Overlay(committed), times=times)
    for call in (
        lambda: handle.getValueState("v", "n long"),
        lambda: handle.getListState("l", "n long", 5),
    ):
        with pytest.raises(BadInputError, match="init has to declare the same every time"):
            call()
    handle.getValueState("v", "n long", 1000)


@pytest.mark.parametrize("variable", ["value", "list", "map"])
def test_refused_value_changes_nothing(committed: DictState, variable: str) -> None:
    batch = Batch(committed, 0)
    call: dict[str, Callable[[], Any]] = {
        "value": lambda: batch.value.update(("x",)),
        "list": lambda: batch.list.appendList([(1,), ("x",)]),
        "map": lambda: batch.map.updateValue((1,), ("x",)),
    }
    with pytest.raises(BadInputError, match="expected long"):
        call[variable]()
    assert len(batch.overlay.changes()) == 0
