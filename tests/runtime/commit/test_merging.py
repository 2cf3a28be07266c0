"""Which segments share a file: the pure plan, for any sizes, limits and open files."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.runtime.commit.file_merging import AppendableFile, Piece, fill_files, is_full, plan_files
from cairn.settings import Settings

ON = Settings()
OFF = replace(ON, merging_enabled=False)

sizes = st.integers(1, 50)
pieces = st.lists(st.builds(Piece, st.integers(0, 7), sizes), max_size=20)
merging = st.builds(
    lambda limit, subtasks: replace(ON, max_file_bytes=limit, max_subtasks_per_file=subtasks),
    st.integers(1, 120),
    st.integers(0, 4),
)
appendable_files = st.lists(
    st.builds(
        AppendableFile,
        file_id=st.uuids().map(str),
        path=st.just("path"),
        size_bytes=sizes,
        subtasks=st.frozensets(st.integers(0, 7), min_size=1),
    ),
    max_size=3,
    unique_by=lambda file: file.file_id,
)


def places(given: list[Piece], settings: Settings, *files: AppendableFile) -> list[list[int]]:
    return [file.pieces for file in plan_files(given, settings, files)]


def test_with_the_defaults_small_segments_share_one_file() -> None:
    assert places([Piece(subtask, 1000) for subtask in range(4)], ON) == [[0, 1, 2, 3]]


def test_without_merging_every_segment_has_its_own_file() -> None:
    assert places([Piece(subtask, 1000) for subtask in range(4)], OFF) == [[0], [1], [2], [3]]


def test_a_new_file_starts_after_the_limit_and_not_before() -> None:
    settings = replace(ON, max_file_bytes=100)
    assert places([Piece(0, 60), Piece(1, 60), Piece(2, 99), Piece(3, 1)], settings) == [
        [0, 1],
        [2, 3],
    ]
    assert places([Piece(0, 500), Piece(1, 1)], settings) == [[0], [1]]


def test_no_more_subtasks_than_the_limit_share_a_file() -> None:
    settings = replace(ON, max_subtasks_per_file=2)
    given = [Piece(0, 1), Piece(0, 1), Piece(1, 1), Piece(2, 1), Piece(2, 1), Piece(3, 1)]
    assert places(given, settings) == [[0, 1, 2], [3, 4, 5]]


def test_a_file_is_continued_until_it_is_full_or_has_its_subtasks() -> None:
    settings = replace(ON, max_file_bytes=100, max_subtasks_per_file=2)
    full = AppendableFile(file_id="full", path="f", size_bytes=100, subtasks=frozenset({0}))
    taken = AppendableFile(file_id="taken", path="t", size_bytes=10, subtasks=frozenset({4, 5}))
    room = AppendableFile(file_id="room", path="r", size_bytes=10, subtasks=frozenset({0}))
    files = plan_files([Piece(0, 1), Piece(1, 1), Piece(2, 1)], settings, [full, taken, room])
    assert [(file.appends_to, file.pieces, file.size_bytes) for file in files] == [
        (room, [0, 1], 12),
        (None, [2], 1),
    ]


@given(pieces, merging, appendable_files)
def test_every_piece_is_in_one_file_and_no_file_passes_its_limits(
    given_pieces: list[Piece], settings: Settings, given_files: list[AppendableFile]
) -> None:
    files = plan_files(given_pieces, settings, given_files)
    assert sorted(place for file in files for place in file.pieces) == [*range(len(given_pieces))]
    for file in files:
        inside = [given_pieces[place] for place in file.pieces]
        start = file.appends_to.size_bytes if file.appends_to else 0
        assert file.size_bytes == start + sum(piece.size_bytes for piece in inside)
        assert not is_full(file.size_bytes - inside[-1].size_bytes, settings)
        before = file.appends_to.subtasks if file.appends_to else frozenset()
        assert file.subtasks == before | {piece.subtask for piece in inside}
        limit = settings.max_subtasks_per_file
        assert not limit or len(file.subtasks) <= max(limit, len(before))
    continued = [file.appends_to for file in files if file.appends_to]
    assert len(continued) == len({file.file_id for file in continued})


@given(pieces)
def test_no_file_is_planned_that_an_earlier_one_had_room_for(given_pieces: list[Piece]) -> None:
    """Two files below half of the limit would have been one."""
    settings = replace(ON, max_file_bytes=100)
    files = plan_files(given_pieces, settings)
    assert all(is_full(file.size_bytes, settings) for file in files[:-1])


@given(st.lists(sizes, max_size=20), merging | st.just(OFF))
def test_files_of_one_subtask_filled_one_by_one_are_those_of_the_plan(
    given_sizes: list[int], settings: Settings
) -> None:
    filled = list(fill_files(given_sizes, int, settings))
    planned = plan_files([Piece(0, size_bytes) for size_bytes in given_sizes], settings)
    assert filled == [[given_sizes[place] for place in file.pieces] for file in planned]


def test_an_open_file_is_filled_first() -> None:
    settings = replace(ON, max_file_bytes=100)
    rest = AppendableFile(file_id="rest", path="r", size_bytes=70, subtasks=frozenset({0}))
    assert list(fill_files([20, 20, 90, 5, 5], int, settings, rest)) == [[20, 20], [90, 5, 5]]


@pytest.mark.parametrize("settings", [ON, OFF])
def test_nothing_to_write_is_no_file(settings: Settings) -> None:
    assert plan_files([], settings) == []
    assert list(fill_files([], int, settings)) == []
