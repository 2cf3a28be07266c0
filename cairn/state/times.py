"""The time mode of a stateful operator, and what time it is in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TimeMode(StrEnum):
    """The clock of timers and TTL: `timeMode` of transformWithState, in lower case."""

    NONE = "none"
    PROCESSING_TIME = "processingtime"
    EVENT_TIME = "eventtime"


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The times of one batch, in ms since 1970 UTC. Both are -1 in time mode NONE."""

    mode: TimeMode = TimeMode.NONE
    processing_ms: int = -1
    """The batch's timestamp, the same in all its tasks and in every attempt."""
    watermark_ms: int = -1
    """The event-time watermark; 0 before any data, and where there is none."""
