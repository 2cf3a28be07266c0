"""The states that rows of the metastore may be in. Triggers refuse other ways between them."""

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
    """No run does any more; goes once its files have."""
    DELETED = "DELETED"


class SegmentStatus(StrEnum):
    """LIVE → DEAD."""

    LIVE = "LIVE"
    """Some retained or future checkpoint needs it."""
    DEAD = "DEAD"


class MaintenanceStatus(StrEnum):
    """PLANNED → APPLIED or FAILED; FAILED → APPLIED."""

    PLANNED = "PLANNED"
    APPLIED = "APPLIED"
    FAILED = "FAILED"


class StateKind(StrEnum):
    """The kinds of state variable: three by key, and lists of a subtask."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    OPERATOR_LIST = "operator_list"
    """At another parallelism, its elements are split among the new subtasks."""
    OPERATOR_UNION = "operator_union"
    """After a restart, every subtask has the elements of all."""
