"""The words that columns hold: states of rows, and what segments, files and pins are for.

Only standard library: plain values of `cairn` use these words too. Triggers refuse changes of
state that are not drawn here.
"""

from __future__ import annotations

from enum import StrEnum


class CheckpointStatus(StrEnum):
    """IN_PROGRESS → COMPLETED → CONFIRMED → SUBSUMED; IN_PROGRESS, COMPLETED → ABORTED."""

    IN_PROGRESS = "IN_PROGRESS"
    """Some subtasks have not acknowledged."""
    COMPLETED = "COMPLETED"
    """All subtasks have; Spark may still replay the batch."""
    CONFIRMED = "CONFIRMED"
    """Spark has committed the batch, which the start of the next one proves."""
    SUBSUMED = "SUBSUMED"
    """Older than every retained checkpoint."""
    ABORTED = "ABORTED"
    """A newer run took its batch again."""


class FileStatus(StrEnum):
    """WRITING → SEALED → CONDEMNED → DELETED; WRITING → CONDEMNED."""

    WRITING = "WRITING"
    """The write intent, committed before the first byte."""
    SEALED = "SEALED"
    """Whole and durable up to its size, which may grow."""
    CONDEMNED = "CONDEMNED"
    """Holds nothing that any checkpoint needs; to be deleted."""
    DELETED = "DELETED"


class DirectoryStatus(StrEnum):
    """CLAIMED → UNCLAIMED → DELETED; UNCLAIMED, DELETED → CLAIMED."""

    CLAIMED = "CLAIMED"
    """A run writes to it, or one that restarts may."""
    UNCLAIMED = "UNCLAIMED"
    """No run does any more; deleted once its files are."""
    DELETED = "DELETED"


class SegmentStatus(StrEnum):
    """LIVE → DEAD."""

    LIVE = "LIVE"
    """Some retained or future checkpoint needs it."""
    DEAD = "DEAD"


class CommitStatus(StrEnum):
    """LIVE → DEAD or ABORTED."""

    LIVE = "LIVE"
    """Some retained or future checkpoint needs some of its segments."""
    DEAD = "DEAD"
    ABORTED = "ABORTED"
    """A newer run took its batch again: its segments are part of no checkpoint."""


class Damage(StrEnum):
    """What is wrong with the bytes of a segment that a checkpoint needs."""

    MISSING = "missing"
    """Its object is not there."""
    SHORT = "short"
    """Its object ends before the segment does."""
    CORRUPT = "corrupt"
    """Its bytes have another SHA-256 than was recorded."""


class RequestKind(StrEnum):
    """What somebody asks of a running query (`cairn.run`)."""

    RESCALE = "rescale"
    """To go on at another parallelism."""
    STOP = "stop"
    """To end after a batch, with a savepoint of it if one is named."""


class RequestStatus(StrEnum):
    """OPEN → TAKEN, WITHDRAWN; TAKEN → DONE, FAILED, WITHDRAWN."""

    OPEN = "OPEN"
    TAKEN = "TAKEN"
    """A driver has seen it, and does it."""
    DONE = "DONE"
    FAILED = "FAILED"
    """It could not be done: the query is as it was before."""
    WITHDRAWN = "WITHDRAWN"
    """A newer request is there instead."""


class MaintenanceStatus(StrEnum):
    """PLANNED → RUNNING, APPLIED, FAILED, REFUSED; RUNNING → the last three; REFUSED → PLANNED."""

    PLANNED = "PLANNED"
    RUNNING = "RUNNING"
    """Somebody applies it under a lease."""
    APPLIED = "APPLIED"
    FAILED = "FAILED"
    """It is not applied any more, as one that has expired."""
    REFUSED = "REFUSED"
    """A circuit breaker spoke; it is PLANNED again once a person has passed the breaker."""


class MaintenanceAction(StrEnum):
    """What a maintenance run does."""

    SUBSUMPTION = "subsumption"
    """Subsumes old checkpoints, condemns and deletes files that none needs."""
    MATERIALIZATION = "materialization"
    """Folds changelogs into bases."""
    COMPACTION = "compaction"
    """Rewrites files of which much is dead."""
    ORPHAN_SWEEP = "orphan_sweep"
    """Finds objects that no row knows."""
    SCRUB = "scrub"
    """Reads segments and verifies their checksums."""
    HEAL = "heal"
    """Makes damaged bases and increments again."""
    HOUSEKEEPING = "housekeeping"
    """Trims history."""


class DecisionKind(StrEnum):
    """What a maintenance run decided about an object, or about itself."""

    SKIPPED = "SKIPPED"
    """It was in the plan, and stayed."""
    REFUSED = "REFUSED"
    """A circuit breaker spoke."""
    PASSED = "PASSED"
    """A person has passed the circuit breakers."""


class QuarantineStatus(StrEnum):
    """QUARANTINED → CONDEMNED → DELETED; QUARANTINED → RESTORED; → RELEASED from these three."""

    QUARANTINED = "QUARANTINED"
    """An orphan that is kept until its time is over."""
    CONDEMNED = "CONDEMNED"
    """To be deleted: the intent, committed before the object is deleted."""
    DELETED = "DELETED"
    RESTORED = "RESTORED"
    """Somebody wants it kept."""
    RELEASED = "RELEASED"
    """It was no orphan any more, gone, or another object."""


class MaterializedBy(StrEnum):
    """Who compacts the changelogs of a job."""

    STREAM = "stream"
    """The processes of its executors."""
    MAINTENANCE = "maintenance"
    """The platform; a stream only where that is late."""


class StateKind(StrEnum):
    """The kinds of state variable: three by key, and lists of a subtask."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    OPERATOR_LIST = "operator_list"
    """At another parallelism, its elements are split among the new subtasks."""
    OPERATOR_UNION = "operator_union"
    """After a restart, every subtask has the elements of all."""


class SegmentKind(StrEnum):
    """What a segment holds."""

    CHANGELOG = "changelog"
    """The changes that one subtask made in one checkpoint."""
    KEYED_FULL = "keyed_full"
    """The whole keyed state of some key groups as of one checkpoint (a materialization)."""
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
"""The segments that a replay of keyed state reads; the others are never part of it."""


class Scope(StrEnum):
    """Who shares a physical file (FLIP-306 4.1); how long is up to its segments' kinds."""

    SHARED = "shared"
    """Merged within one subtask; may serve many checkpoints."""
    TASK_MANAGER = "taskmanager"
    """Merged across the subtasks of one executor."""
    MAINTENANCE = "maintenance"
    """Written by one maintenance run, merged across subtasks."""


class HeldBy(StrEnum):
    """Why rewriting a file frees nothing (`functions/wasteful_files.sql`)."""

    OPEN = "open"
    """Its run may append to it."""
    DAMAGED = "damaged"
    """A segment in it is damaged, and a copy would be."""
    PIN = "pin"
    """A pinned checkpoint needs a segment in it."""
    CHANGELOG = "changelog"
    """Checkpoints to come need changelog in it, which is folded and never moved."""
    RETAINED = "retained"
    """What is live in it dies with checkpoints that are retained now."""


class PinKind(StrEnum):
    """Why a checkpoint stays beyond those that are retained."""

    PIN = "pin"
    """Somebody reads it or returns to it."""
    SAVEPOINT = "savepoint"
    """Another job may be started from its manifest."""
