"""What a task is given reaches its processor whole, wherever it had to be kept meanwhile."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from cairn.errors import RefusedError
from cairn.keygroups import KeyGroupRange, subtask_of
from cairn.runtime.processing.processor_io import RowIO, io_of
from cairn.runtime.processing.processor_run import Share, process
from cairn.runtime.processing.spill import Output, SpillDirectory
from cairn.runtime.processing.task_input import KeyedRows
from cairn.state.times import BatchTimes
from cairn.state.view import NoState
from tests.runtime.processing.operators import (
    AT,
    MAX_PARALLELISM,
    ROWS,
    InputRow,
    batch_of,
    operator_of,
    task_input_of,
)

KEYS: list[str | None] = [None, "", *"abcdefgh"]
HASHES = [0, 1, -1, 5, 13, -(2**31), 2**31 - 1]
"""Fewer than keys, so that keys collide; 5 and 13 are of one key group."""

hashes_by_key = st.fixed_dictionaries({key: st.sampled_from(HASHES) for key in KEYS})
batches_of_keys = st.lists(st.lists(st.sampled_from(KEYS), max_size=12), max_size=12)


@pytest.fixture(autouse=True)
def local_dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'blocks'},{tmp_path / 'more'}")
    return tmp_path / "blocks"


def owner(key_hash: int, parallelism: int) -> int:
    return subtask_of(key_hash % MAX_PARALLELISM, parallelism, MAX_PARALLELISM)


def rows_by_key(parts: Iterator[KeyedRows]) -> dict[str | None, list[int]]:
    """Returns the values of each key; a key that comes in two parts fails."""
    form = RowIO(ROWS, lambda batch: None)
    found: dict[str | None, list[int]] = {}
    for part in parts:
        keys = []
        for _, (key,), rows in form.by_key(part, operator_of().keys, ROWS):
            assert key not in found
            found[key] = [row.value for row in rows]
            keys.append(key)
        assert len(keys) == 1 or not part.is_one_key
    return found


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hashes=hashes_by_key,
    batches=batches_of_keys,
    memory_bytes=st.sampled_from([1, 100, 400, 2000, 1 << 20]),
    parallelism=st.integers(1, 4),
    tasks=st.integers(1, 4),
)
def test_every_row_is_handed_over_once_in_order_and_every_key_whole(
    hashes: dict[str | None, int],
    batches: list[list[str | None]],
    memory_bytes: int,
    parallelism: int,
    tasks: int,
    local_dirs: Path,
) -> None:
    tasks = min(tasks, parallelism)
    arrived: list[list[InputRow]] = []
    expected: dict[int, dict[str | None, list[int]]] = {i: {} for i in range(parallelism)}
    for number, keys in enumerate(batches):
        arrived.append(
            [(key, number * 100 + i, None, hashes[key], 0) for i, key in enumerate(keys)]
        )
        for key, value, _, key_hash, _ in arrived[-1]:
            assert key_hash is not None
            expected[owner(key_hash, parallelism)].setdefault(key, []).append(value)
    for task in range(tasks):
        subtasks = range(-(-task * parallelism // tasks), -(-(task + 1) * parallelism // tasks))
        mine = [
            batch_of([row for row in rows if owner(row[3] or 0, parallelism) in subtasks])
            for rows in arrived
        ]
        with SpillDirectory() as spill:
            task_input = task_input_of(
                spill, parallelism=parallelism, subtasks=subtasks, memory_bytes=memory_bytes
            )
            task_input.read(mine)
            for subtask in subtasks:
                assert rows_by_key(task_input.keyed_rows(subtask)) == expected[subtask]
                assert task_input.counts(subtask).rows == sum(map(len, expected[subtask].values()))
        assert not local_dirs.exists() or not list(local_dirs.iterdir())


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.lists(st.none() | st.integers(-2_000, 12_000_000), max_size=30),
    late_ms=st.none() | st.integers(-1, 12_000),
    memory_bytes=st.sampled_from([1, 1 << 20]),
)
@example(times=[4_999_999, 5_000_000, 5_000_001], late_ms=5_000, memory_bytes=1 << 20)
def test_late_rows_are_counted_and_dropped_but_their_time_counts(
    times: list[int | None], late_ms: int | None, memory_bytes: int
) -> None:
    rows: list[InputRow] = [("k", i, at, i, i % 2) for i, at in enumerate(times)]
    kept, late, latest = 0, 0, [[], []]  # type: ignore[var-annotated]
    for _, _, at, _, number in rows:
        is_late = at is not None and late_ms is not None and at <= late_ms * 1000
        late, kept = late + is_late, kept + (not is_late)
        latest[number] += [] if at is None else [at // 1000]
    operator = operator_of(event_time=AT, inputs=2)
    with SpillDirectory() as spill:
        task_input = task_input_of(
            spill, operator=operator, late_ms=late_ms, memory_bytes=memory_bytes
        )
        task_input.read([batch_of(rows[:7]), batch_of(rows[7:])])
        given_ = task_input.counts(0)
        assert sum(table.num_rows for p in task_input.keyed_rows(0) for table in p.tables) == kept
    assert (given_.rows, given_.late_rows) == (len(rows), late)
    assert given_.max_event_ms == tuple(max(known, default=None) for known in latest)


def test_heartbeats_are_no_rows() -> None:
    beat: InputRow = (None, 0, None, None, 0)
    with SpillDirectory() as spill:
        task_input = task_input_of(spill)
        task_input.read([batch_of([beat, ("a", 1, None, 3, 0), beat]), batch_of([beat])])
        assert task_input.counts(0).rows == 1
        assert rows_by_key(task_input.keyed_rows(0)) == {"a": [1]}


def test_a_subtask_without_rows_is_given_none() -> None:
    with SpillDirectory() as spill:
        task_input = task_input_of(spill, parallelism=2, operator=operator_of(event_time=AT))
        task_input.read([])
        assert list(task_input.keyed_rows(1)) == []
        assert (task_input.counts(1).rows, task_input.counts(1).max_event_ms) == (0, (None,))


def test_rows_of_a_foreign_subtask_are_refused() -> None:
    with SpillDirectory() as spill:
        task_input = task_input_of(spill, parallelism=4, subtasks=range(1, 3))
        with pytest.raises(RefusedError, match=r"subtasks \[1, 2\] was given rows of subtask 3"):
            task_input.read([batch_of([("a", 1, None, 2, 0), ("b", 1, None, 7, 0)])])


def test_the_spill_directory_is_removed_when_the_task_fails(local_dirs: Path) -> None:
    def failing_task() -> None:
        with SpillDirectory() as spill:
            task_input = task_input_of(spill, memory_bytes=1)
            task_input.read([batch_of([("a", 1, None, 3, 0), ("b", 1, None, 4, 0)])])
            next(task_input.keyed_rows(0))
            assert [path.name[:12] for path in local_dirs.iterdir()] == ["cairn-spill-"]
            raise RuntimeError("in the handler")

    with pytest.raises(RuntimeError, match="in the handler"):
        failing_task()
    assert list(local_dirs.iterdir()) == []


def test_what_was_processed_frees_its_disk(local_dirs: Path) -> None:
    rows: list[InputRow] = [(str(i), i, None, i * 7919, 0) for i in range(200)]
    with SpillDirectory() as spill:
        task_input = task_input_of(spill, memory_bytes=1000)
        task_input.read([batch_of(rows)])
        assert len(rows_by_key(task_input.keyed_rows(0))) == 200
        assert [file for file in local_dirs.rglob("*") if file.is_file()] == []


@contextmanager
def open_files_at_most(more: int) -> Iterator[None]:
    """Lets this process open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_task_of_many_subtasks_spills_with_few_open_files() -> None:
    rows: list[InputRow] = [(str(i), i, None, i, 0) for i in range(5000)]
    with SpillDirectory() as spill, open_files_at_most(150):
        task_input = task_input_of(spill, parallelism=128, memory_bytes=1000)
        task_input.read([batch_of(rows[:2500]), batch_of(rows[2500:])])
        found = [rows_by_key(task_input.keyed_rows(subtask)) for subtask in range(128)]
    assert sum(map(len, found)) == 5000


COUNTING = pa.proxy_memory_pool(pa.default_memory_pool())  # has to outlive what it allocates


@contextmanager
def arrow_memory() -> Iterator[pa.MemoryPool]:
    """A pool that counts what Arrow takes meanwhile."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(COUNTING)
    try:
        yield COUNTING
    finally:
        pa.set_memory_pool(before)


def big_batches(megabytes: int, key: str | None) -> Iterator[pa.RecordBatch]:
    """Yields batches of 1 MB: of one key, or of a new key each row."""
    values = range(1024)
    for number in range(megabytes):
        keys = [key or f"{number}-{i}".ljust(1000) for i in values]
        keys = [one.ljust(1000) for one in keys]
        hashes = [7 if key else number * 1024 + i for i in values]
        yield batch_of([(k, i, None, h, 0) for k, i, h in zip(keys, values, hashes, strict=True)])


class Count(StatefulProcessor):
    """Counts a key's rows."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(key=key[0][:4].strip(), n=sum(1 for _ in rows))


@pytest.mark.parametrize("key", ["huge", None])
def test_memory_is_bounded_however_much_there_is(key: str | None) -> None:
    counted: dict[str, int] = {}

    def emit(batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            counted[row["key"]] = counted.get(row["key"], 0) + row["n"]

    with arrow_memory() as pool, SpillDirectory() as spill:
        task_input = task_input_of(spill, memory_bytes=2 << 20)
        task_input.read(big_batches(48, key))
        io = io_of(operator_of(Count()), emit)
        process(
            operator_of(Count()),
            Share(KeyGroupRange(0, MAX_PARALLELISM), MAX_PARALLELISM),
            NoState(),
            BatchTimes(),
            initial=[],
            rows=task_input.keyed_rows(0),
            io=io,
        )
        io.flush()
        assert pool.max_memory() < 24 << 20
    assert sum(counted.values()) == 48 * 1024
    assert key is None or counted == {key: 48 * 1024}


@pytest.mark.parametrize("memory_bytes", [1, 500, 1 << 20])
def test_output_comes_in_order_from_memory_and_disk(memory_bytes: int, local_dirs: Path) -> None:
    rows: list[InputRow] = [("k", i, None, 0, 0) for i in range(40)]
    with SpillDirectory() as spill:
        output = Output(spill, memory_bytes)
        for first in range(0, 40, 3):
            output.add(batch_of(rows[first : first + 3]))
        assert local_dirs.exists() == (memory_bytes < 1 << 20)
        values = [value for b in output.read() for value in b.column("value").to_pylist()]
    assert values == list(range(40))


def test_no_output_is_nothing() -> None:
    with SpillDirectory() as spill:
        assert list(Output(spill, 1).read()) == []


def test_big_output_is_held_on_disk() -> None:
    with arrow_memory() as pool, SpillDirectory() as spill:
        output = Output(spill, 2 << 20)
        for batch in big_batches(32, "k"):
            output.add(batch)
        assert sum(batch.num_rows for batch in output.read()) == 32 * 1024
        assert pool.max_memory() < 12 << 20
