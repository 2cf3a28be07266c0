"""Which files of a job to rewrite. Pure: files in, the worst first, a plan out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from cairn.catalog.maintenance.wasteful_files import CompactedJob, WastefulFile
from cairn.errors import BadInputError
from metastore.enums import HeldBy

MOST_SEGMENTS = 10_000
"""Of a plan, which is one row."""
MOST_HELD_FILES = 100
"""Of each reason, that a plan names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """How much is rewritten, and when.

    It starts when some file has a space amplification above `start_amplification`, and then takes
    files down to `stop_amplification`, as far as `input_bytes` go. `drain_parallelism`: all files
    of the subtasks of that parallelism instead, whatever their amplification.
    """

    start_amplification: float = 2.0
    stop_amplification: float = 1.5
    input_bytes: int = 1 << 30
    drain_parallelism: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.stop_amplification <= self.start_amplification:
            raise BadInputError(
                f"compaction is to start above an amplification of {self.start_amplification:g} "
                f"and to stop below {self.stop_amplification:g}; the second is from 1 to the first"
            )
        if self.input_bytes < 1:
            raise BadInputError(
                f"compaction is to rewrite {self.input_bytes} bytes; name 1 or more"
            )


@dataclass(slots=True, kw_only=True)
class Held:
    """The files that are not rewritten for one reason: how many, and some of their paths."""

    files: int = 0
    size_bytes: int = 0
    dead_bytes: int = 0
    paths: list[str] = field(default_factory=list)

    def add(self, file: WastefulFile) -> None:
        """Counts a file."""
        self.files += 1
        self.size_bytes += file.size_bytes
        self.dead_bytes += file.size_bytes - file.live_bytes
        if len(self.paths) < MOST_HELD_FILES:
            self.paths.append(file.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """The files to rewrite, in this order.

    `copied_bytes` are read and written, and live twice until the checkpoints that there are now
    have been subsumed; then `freed_bytes` more are free than before. `held` is by reason. The plan
    `is_capped` if files were left for the next one. `pointless_because` says, in words, why nothing
    is rewritten although something would be.
    """

    job: str
    files: tuple[WastefulFile, ...]
    copied_bytes: int
    freed_bytes: int
    held: dict[HeldBy, Held]
    is_capped: bool
    pointless_because: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.files

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON values: lists, objects, text and numbers."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain


def plan_compaction(
    job: CompactedJob,
    worst: Iterable[WastefulFile],
    others: Iterable[WastefulFile],
    options: CompactionOptions,
) -> CompactionPlan:
    """Returns the files to rewrite: of the worst, and if there are any then of the others, too.

    Both are in the order in which they are taken, and drawn from only as far as needed. A file that
    something holds is counted, and not taken; one that is larger than the cap is taken alone.
    """
    chosen = _Chosen(options)
    if options.drain_parallelism is not None:
        chosen.add(_without_held_directories(worst, chosen))
    else:
        chosen.add(worst)
        if chosen.files:
            chosen.add(others)
    files = tuple(chosen.files)
    pointless = _pointless(job, files, chosen.held, options)
    return CompactionPlan(
        job=job.name,
        files=() if pointless else files,
        copied_bytes=0 if pointless else sum(file.movable_bytes for file in files),
        freed_bytes=0 if pointless else sum(file.freed_bytes for file in files),
        held=chosen.held,
        is_capped=chosen.is_capped,
        pointless_because=pointless,
    )


class _Chosen:
    """The files that are taken, until the cap is reached, and those that are held."""

    def __init__(self, options: CompactionOptions) -> None:
        self.files: list[WastefulFile] = []
        self.held: dict[HeldBy, Held] = {}
        self.is_capped = False
        self._options = options
        self._bytes = self._segments = 0
        self._seen: set[str] = set()

    def add(self, files: Iterable[WastefulFile]) -> None:
        for file in files:
            if file.path in self._seen:
                continue
            self._seen.add(file.path)
            if file.held_by is not None:
                self.hold(file, file.held_by)
                continue
            self._bytes += file.movable_bytes
            self._segments += file.movable_segments
            # One is taken however large it is, or nothing would ever be.
            if self.files and (
                self._bytes > self._options.input_bytes or self._segments > MOST_SEGMENTS
            ):
                self.is_capped = True
                return
            self.files.append(file)

    def hold(self, file: WastefulFile, reason: HeldBy) -> None:
        self.held.setdefault(reason, Held()).add(file)


def _without_held_directories(
    files: Iterable[WastefulFile], chosen: _Chosen
) -> Iterator[WastefulFile]:
    """Yields the files of the directories that can be emptied: no pin keeps a file in them."""
    by_directory: dict[str, list[WastefulFile]] = {}
    for file in files:
        by_directory.setdefault(file.directory, []).append(file)
    for inside in by_directory.values():
        if any(file.held_by is HeldBy.PIN for file in inside):
            for file in inside:
                chosen.hold(file, HeldBy.PIN)
        else:
            yield from inside


def _pointless(
    job: CompactedJob,
    files: tuple[WastefulFile, ...],
    held: dict[HeldBy, Held],
    options: CompactionOptions,
) -> str | None:
    if job.is_dropped:
        return "the job was dropped: the cleanup deletes all of its files"
    if options.drain_parallelism is not None and options.drain_parallelism == job.parallelism:
        return f"the job runs with a parallelism of {job.parallelism}: it writes there itself"
    if files and not job.is_running:
        return (
            "no run of the job is alive, so no checkpoint replaces those that need the files as "
            "they are, and the copies would only be more. Start the query first"
        )
    if not files and set(held) == {HeldBy.PIN}:
        return (
            f"pinned checkpoints need all of the {held[HeldBy.PIN].files} files that would be "
            "rewritten, and would keep them beside their copies. Look at `cairn pins`"
        )
    return None
