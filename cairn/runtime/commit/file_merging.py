"""Which segments share a physical file (FLIP-306 4.1). Pure: sizes in, files out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from cairn.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment to be written, of so many bytes."""

    subtask: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendableFile:
    """A physical file that may be continued at its end, `size_bytes`, and its subtasks."""

    file_id: str
    path: str
    size_bytes: int
    subtasks: frozenset[int]


@dataclass(slots=True, kw_only=True)
class PlannedFile:
    """A file to write. `pieces` are places in the given sequence; a new one appends to None.

    `size_bytes` and `subtasks` are those of the whole file once it is written.
    """

    appends_to: AppendableFile | None = None
    pieces: list[int] = field(default_factory=list)
    size_bytes: int = 0
    subtasks: set[int] = field(default_factory=set)


def plan_files(
    pieces: Sequence[Piece], settings: Settings, appendable_files: Sequence[AppendableFile] = ()
) -> list[PlannedFile]:
    """Returns the files that hold the pieces, in order of pieces; those to continue first.

    Without merging, each piece has a file of its own. With it, a piece is in the first file that
    takes it: one below `max_file_bytes`, which a file may pass by its last piece (the limit is
    soft, as Flink's), and with fewer subtasks than `max_subtasks_per_file` or its own among them.
    """
    if not settings.merging_enabled:
        return [
            PlannedFile(
                appends_to=None,
                pieces=[place],
                size_bytes=piece.size_bytes,
                subtasks={piece.subtask},
            )
            for place, piece in enumerate(pieces)
        ]
    files = [
        PlannedFile(
            appends_to=file, pieces=[], size_bytes=file.size_bytes, subtasks=set(file.subtasks)
        )
        for file in appendable_files
    ]
    for place, piece in enumerate(pieces):
        # First fit: as few files as possible are open, and those at rest are filled first.
        file = next((file for file in files if _takes(file, piece.subtask, settings)), None)
        if file is None:
            files.append(file := PlannedFile())
        file.pieces.append(place)
        file.size_bytes += piece.size_bytes
        file.subtasks.add(piece.subtask)
    # Without those at rest that took nothing.
    return [file for file in files if file.pieces]


def is_full(size_bytes: int, settings: Settings) -> bool:
    """Tells whether a new file starts after one of this size."""
    return not settings.merging_enabled or size_bytes >= settings.max_file_bytes


def fill_files(
    segments: Iterable[T],
    size_bytes: Callable[[T], int],
    settings: Settings,
    appends_to: AppendableFile | None = None,
) -> Iterator[list[T]]:
    """Yields one subtask's segments by file, each as soon as its file is full.

    The same files as `plan_files` makes of them, without holding more than one file's segments. The
    first is the rest of the file to continue, if there is one.
    """
    file: list[T] = []
    file_bytes = appends_to.size_bytes if appends_to else 0
    for segment in segments:
        file.append(segment)
        file_bytes += size_bytes(segment)
        if is_full(file_bytes, settings):
            yield file
            file, file_bytes = [], 0
    if file:
        yield file


def _takes(file: PlannedFile, subtask: int, settings: Settings) -> bool:
    if is_full(file.size_bytes, settings):
        return False
    limit = settings.max_subtasks_per_file
    return not limit or subtask in file.subtasks or len(file.subtasks) < limit
