"""The plain values that name bytes in storage and what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cairn.keygroups import KeyGroupRange


class SegmentKind(StrEnum):
    """What a segment holds."""

    CHANGELOG = "changelog"
    """The changes that one subtask made in one checkpoint."""
    KEYED_FULL = "keyed_full"
    """The whole keyed state of some key groups as of one checkpoint (a materialisation)."""
    KEYED_INCREMENT = "keyed_increment"
    """What of it has changed since the bases, as of one checkpoint."""
    OPERATOR = "operator"
    """All operator lists of one subtask as of one checkpoint: state that belongs to no key."""
    CHANNEL = "channel"
    """Rows that a subtask has taken in and not processed in one checkpoint."""
    MANIFEST = "manifest"
    """All handles of one checkpoint (`cairn.manifest`): no state, so no restore reads it."""

    @property
    def is_exclusive(self) -> bool:
        """Whether a segment is part of exactly one checkpoint (scope EXCLUSIVE, FLINK-10930)."""
        return self in (SegmentKind.OPERATOR, SegmentKind.CHANNEL, SegmentKind.MANIFEST)


KEYED = (SegmentKind.CHANGELOG, SegmentKind.KEYED_FULL, SegmentKind.KEYED_INCREMENT)
"""What keyed state is replayed from; the others are never part of it."""

OF_AN_ATTEMPT = (SegmentKind.CHANGELOG, SegmentKind.OPERATOR, SegmentKind.CHANNEL)
"""What an attempt at a batch writes, which goes when another attempt or run takes its place."""


class Scope(StrEnum):
    """Who shares a physical file (FLIP-306 4.1); how long is up to its segments' kinds."""

    SHARED = "shared"
    """Merged within one subtask; may serve many checkpoints."""
    TASK_MANAGER = "taskmanager"
    """Merged across the subtasks of one executor."""


class PinKind(StrEnum):
    """Why a checkpoint stays beyond those that are retained."""

    PIN = "pin"
    """Somebody reads it or goes back to it."""
    SAVEPOINT = "savepoint"
    """Another job may be started from its manifest."""


@dataclass(frozen=True, slots=True)
class DirectoryHandle:
    """A directory that one subtask or one task manager owns, to be given up whole (FLIP-306 4.3).

    `path` is its key below the job's storage. A subtask's has `subtask` and `parallelism`, a task
    manager's has `tm_id`.
    """

    path: str
    scope: Scope
    subtask: int | None = None
    parallelism: int | None = None
    tm_id: str | None = None


@dataclass(frozen=True, slots=True)
class SegmentHandle:
    """One contiguous byte range of a physical file, written by one subtask for one purpose.

    `path` is the physical file's key below the job's storage, `offset` and `size_bytes` the range
    in it, `sha256` the hex digest of exactly those bytes. The segment brings a restore to the
    state of checkpoint `as_of_checkpoint` in its `key_groups`; it is part of checkpoint c iff
    `first_checkpoint <= c` and (`released_checkpoint` is None or `c < released_checkpoint`).
    `sequence_number` is its place among the changelog segments of a subtask in one checkpoint. One
    of an exclusive kind is released at the checkpoint after its own from the start.
    """

    segment_id: str
    kind: SegmentKind
    path: str
    offset: int
    size_bytes: int
    sha256: str
    key_groups: KeyGroupRange
    entries: int
    first_checkpoint: int
    as_of_checkpoint: int
    released_checkpoint: int | None = None
    sequence_number: int = 0
