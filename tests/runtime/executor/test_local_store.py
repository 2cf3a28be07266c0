"""Local state against a plain dict: long keys, ranges, and processes that are killed or race."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.errors import StorageError
from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor import stored_keys
from cairn.runtime.executor.local_mark import boot_id
from cairn.runtime.executor.local_record import Position
from cairn.runtime.executor.local_store import LocalStore
from cairn.state.entries import (
    TIMERS_BY_EXPIRY,
    entry_prefix,
    key_group_bounds,
    list_suffix,
    split,
)
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes
from tests.runtime.executor.local_writer import COUNT

ROOT = Path(__file__).resolve().parents[3]
VALUE, LIST, MAP = 1, 2, 3

# Around the 400 bytes of the longest prefix that is stored as it is and LMDB's limit of 511, with a
# common head: grouping keys that are prefixes of each other, and such that differ at the end only.
LENGTHS = [0, 1, 5, 384, 390, 391, 392, 393, 394, 400, 470, 494, 502, 503, 504, 600]
grouping_keys = st.builds(
    lambda size, end: (b"k" * size)[: max(0, size - len(end))] + end,
    st.sampled_from(LENGTHS),
    st.sampled_from([b"", b"\x00", b"\xff", b"ab"]),
)
user_keys = st.builds(
    lambda head, size, end: head + b"u" * size + end,
    st.sampled_from([b"", b"\x00", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"]),
    st.sampled_from([0, 1, 20, 68, 69, 70, 79, 100, 111, 460, 469, 470, 471, 497, 500]),
    st.sampled_from([b"", b"a", b"b", b"c", b"d"]),
)
sequences = st.sampled_from([0, 1, 255, 2**63, 2**64 - 1])
key_groups = st.integers(0, 3)
prefixes = st.builds(entry_prefix, key_groups, st.sampled_from([LIST, MAP]), grouping_keys)
entry_keys = st.one_of(
    st.builds(lambda group, key: entry_prefix(group, VALUE, key), key_groups, grouping_keys),
    st.builds(
        lambda group, key, number: entry_prefix(group, LIST, key) + list_suffix(number),
        key_groups,
        grouping_keys,
        sequences,
    ),
    # Few maps, so that each has several long keys.
    st.builds(
        lambda size, user: entry_prefix(1, MAP, b"k" * size) + user,
        st.sampled_from([5, 391, 392, 393, 600]),
        user_keys,
    ),
)
puts = st.tuples(st.just(PUT), entry_keys, st.binary(max_size=3))
deletes = st.tuples(st.just(DELETE), entry_keys, st.none())
clears = st.tuples(st.just(DELETE_PREFIX), prefixes, st.none())
segments = st.lists(st.one_of(puts, puts, puts, deletes, clears), max_size=30)
only_puts = st.lists(puts, max_size=30)
ranges = st.tuples(st.integers(0, 4), st.integers(0, 4)).map(
    lambda ends: KeyGroupRange(*sorted(ends))
)
Change = tuple[int, bytes, bytes | None]


@contextmanager
def fresh_store() -> Iterator[LocalStore]:
    with TemporaryDirectory() as directory:
        yield LocalStore(Path(directory) / "subtask-0-1")


def as_changes(segment: list[Change]) -> Changes:
    return Changes(
        [op for op, _, _ in segment], [k for _, k, _ in segment], [v for *_, v in segment]
    )


def apply_to_model(model: dict[bytes, bytes], segment: list[Change]) -> None:
    for op, key, value in segment:
        if op == PUT:
            assert value is not None
            model[key] = value
        elif op == DELETE:
            model.pop(key, None)
        else:
            for gone in [k for k in model if k.startswith(key)]:
                del model[gone]


def contents(store: LocalStore, groups: KeyGroupRange = KeyGroupRange(0, 4)) -> dict[bytes, bytes]:  # noqa: B008 - frozen
    with store.read() as reader:
        entries = list(reader.range(groups))
    assert len({key for key, _ in entries}) == len(entries)
    return dict(entries)


def within(model: dict[bytes, bytes], groups: KeyGroupRange) -> dict[bytes, bytes]:
    lower, upper = key_group_bounds(groups)
    return {key: value for key, value in model.items() if lower <= key < upper}


def collection_of(key: bytes) -> bytes:
    return key[: len(key) - len(split(key).suffix)]


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.one_of(segments, only_puts, ranges), max_size=6),
    asked=st.lists(prefixes, max_size=5),
    some=ranges,
)
def test_entries_are_those_of_a_dict_whatever_is_applied_and_cleared(
    steps: list[list[Change] | KeyGroupRange], asked: list[bytes], some: KeyGroupRange
) -> None:
    model: dict[bytes, bytes] = {}
    with fresh_store() as store:
        for number, step in enumerate(steps, start=1):
            with store.write() as writer:
                if isinstance(step, KeyGroupRange):
                    writer.clear(step)
                    model = {k: v for k, v in model.items() if k not in within(model, step)}
                else:
                    writer.apply(as_changes(step))
                    apply_to_model(model, step)
                writer.move_to(Position(number, "run", 1))
        assert contents(store) == model
        assert contents(store, some) == within(model, some)
        written = [key for step in steps if isinstance(step, list) for _, key, _ in step]
        with store.read() as reader:
            assert reader.position() == (Position(len(steps), "run", 1) if steps else None)
            for key in written:
                assert reader.get(key) == model.get(key)
            for prefix in asked + [collection_of(key) for key in written]:
                here = sorted((k, v) for k, v in model.items() if k.startswith(prefix))
                assert list(reader.scan(prefix)) == here


@settings(max_examples=150, deadline=None)
@given(
    elements=st.lists(st.tuples(key_groups, grouping_keys, sequences), max_size=25),
    others=st.lists(puts, max_size=10),
    positioned=st.booleans(),
)
def test_the_last_element_of_every_list_is_found_among_any_other_entries(
    elements: list[tuple[int, bytes, int]], others: list[Change], positioned: bool
) -> None:
    lists = [(entry_prefix(group, LIST, key), list_suffix(n)) for group, key, n in elements]
    segment: list[Change] = [(PUT, prefix + suffix, b"") for prefix, suffix in lists]
    segment += [change for change in others if change[1][3] != LIST]
    with fresh_store() as store:
        with store.write() as writer:
            writer.apply(as_changes(segment))
            if positioned:
                writer.move_to(Position(1, "run", 1))
        with store.read() as reader:
            for prefix in {prefix for prefix, _ in lists}:
                greatest = max(suffix for other, suffix in lists if other == prefix)
                assert reader.last(prefix) == prefix + greatest
                assert reader.last(prefix[:-1] + b"?") is None or not prefix[8:]


def test_a_list_whose_elements_are_all_gone_has_no_last(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "subtask-0-1")
    for size in (5, 500, 600):
        prefix = entry_prefix(1, LIST, b"k" * size)
        neighbour = entry_prefix(1, LIST, b"k" * size + b"x") + list_suffix(1)
        with store.write() as writer:
            writer.apply(as_changes([(PUT, neighbour, b""), (PUT, prefix + list_suffix(7), b"")]))
            writer.apply(as_changes([(DELETE_PREFIX, prefix, None)]))
        with store.read() as reader:
            assert reader.last(prefix) is None
            assert reader.get(neighbour) == b""


def distinct(number: int, size_bytes: int) -> bytes:
    return number.to_bytes(4, "big") + b"k" * (size_bytes - 4)


@pytest.mark.parametrize(
    ("prefix", "suffix_bytes"),
    [
        (entry_prefix(1, MAP, b"k"), 20),
        (entry_prefix(1, MAP, b"k"), 600),
        (entry_prefix(1, MAP, b"k" * 600), 8),
        (entry_prefix(1, MAP, b"k" * 600), 600),
        (entry_prefix(1, TIMERS_BY_EXPIRY, b""), 600),
    ],
    ids=["short keys", "long user keys", "a long key", "both", "timers of long keys"],
)
def test_the_first_and_the_last_of_100_000_entries_are_found_without_reading_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: bytes, suffix_bytes: int
) -> None:
    store = LocalStore(tmp_path / "subtask-0-1")
    keys = [prefix + distinct(number, suffix_bytes) for number in range(100_000)]
    with store.write() as writer:
        writer.apply(Changes([PUT] * len(keys), keys, [b""] * len(keys)))
    reads = []
    real = stored_keys.real_entry

    def counted(stored_key: bytes, value: bytes) -> tuple[bytes, bytes]:
        reads.append(stored_key)
        return real(stored_key, value)

    monkeypatch.setattr(stored_keys, "real_entry", counted)
    with store.read() as reader:
        scan = reader.scan(prefix)
        assert [key for key, _ in islice(scan, 3)] == keys[:3]
        scan.close()  # type: ignore[attr-defined]  # it is a generator
        assert reader.get(keys[-1]) == b""
        if suffix_bytes == 8:
            assert reader.last(prefix) == keys[-1]
        assert len(reads) <= 4


def test_a_value_of_64_mb_and_its_removal(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "subtask-0-1")
    value = b"v" * (64 << 20)
    keys = [entry_prefix(0, VALUE, b"k" * size) for size in (5, 600)]
    with store.write() as writer:
        writer.apply(Changes([PUT, PUT], keys, [value, value]))
    with store.read() as reader:
        assert all(reader.get(key) == value for key in keys)
    with store.write() as writer:
        writer.apply(Changes([DELETE, DELETE], keys, [None, None]))
    assert contents(store) == {}


def test_a_reader_keeps_its_snapshot_while_others_write(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "subtask-0-1")
    key = entry_prefix(0, VALUE, b"k")
    with store.write() as writer:
        writer.apply(as_changes([(PUT, key, b"old")]))
        writer.move_to(Position(1, "run", 1))
    with store.read() as reader:
        with store.write() as writer:
            writer.apply(as_changes([(PUT, key, b"new"), (PUT, key + b"?", b"")]))
            writer.move_to(Position(2, "run", 1))
        assert reader.get(key) == b"old"
        assert reader.position() == Position(1, "run", 1)
        assert dict(reader.range(KeyGroupRange(0, 4))) == {key: b"old"}


def test_an_error_inside_a_write_undoes_all_of_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "subtask-0-1")
    key = entry_prefix(0, VALUE, b"k")

    def fail_half_way() -> None:
        with store.write() as writer:
            writer.apply(as_changes([(PUT, key, b"half")]))
            writer.move_to(Position(1, "run", 1))
            raise StorageError("the segment cannot be read")

    with pytest.raises(StorageError, match="cannot be read"):
        fail_half_way()
    assert contents(store) == {}
    with store.read() as reader:
        assert reader.position() is None


def test_state_outlives_its_process_but_not_the_boot_of_the_machine(tmp_path: Path) -> None:
    directories = [tmp_path / f"subtask-{i}-2" for i in (0, 1)]
    for directory in directories:
        count_in_a_process(directory, 1)
    mark = directories[1] / "boot-id"
    mark.write_text(mark.read_text().replace(boot_id(), "another-boot"))
    kept, thrown_away = map(LocalStore, directories)
    assert contents(kept) == {COUNT: b"1"}
    assert contents(thrown_away) == {}
    with thrown_away.read() as reader:
        assert reader.position() is None


def test_state_with_another_form_of_keys_is_thrown_away(tmp_path: Path) -> None:
    directory = tmp_path / "subtask-0-2"
    count_in_a_process(directory, 1)
    (directory / "boot-id").write_text(boot_id())  # as the form before wrote it
    assert contents(LocalStore(directory)) == {}


@pytest.mark.parametrize("mark", [None, "", "half-a-b"])
def test_state_whose_boot_mark_was_not_written_whole_is_thrown_away(
    tmp_path: Path, mark: str | None
) -> None:
    directory = tmp_path / "subtask-0-1"
    directory.mkdir()
    (directory / "data.mdb").write_bytes(b"garbage of a killed process")
    if mark is not None:
        (directory / "boot-id").write_text(mark)
    assert contents(LocalStore(directory)) == {}


def start_writer(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.executor.local_writer", str(directory), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_writer_killed_in_its_transaction_leaves_nothing_and_no_lock(tmp_path: Path) -> None:
    directory = tmp_path / "subtask-0-1"
    store = LocalStore(directory)
    key = entry_prefix(0, VALUE, b"k")
    with store.write() as writer:
        writer.apply(as_changes([(PUT, key, b"v")]))
        writer.move_to(Position(1, "run", 1))
    with start_writer(directory, "hold", "20000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert contents(store) == {key: b"v"}
    with store.write() as writer:
        assert writer.reader.position() == Position(1, "run", 1)
        writer.move_to(Position(2, "run", 1))
    assert contents(store) == {key: b"v"}


def count_in_a_process(directory: Path, number: int, processes: int = 1) -> None:
    writers = [start_writer(directory, "count", str(number)) for _ in range(processes)]
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0] * processes


def test_two_processes_write_one_after_the_other_and_lose_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "subtask-0-1"
    count_in_a_process(directory, 100, processes=2)
    store = LocalStore(directory)
    assert contents(store) == {COUNT: b"200"}
    with store.read() as reader:
        assert reader.position() == Position(200, "counting", 1)
