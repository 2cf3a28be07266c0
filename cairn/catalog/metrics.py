"""Every metric of the view `v_metrics`: its name, kind, unit and meaning. The values are in SQL.

Names with the groups `fileMerging`, `ChangelogStorage`, `ChangelogMaterialization` and
`ChangelogStateBackend`, and `changelogBusyTimeMsPerSecond`, are Flink's; those with `FilePool` and
`Storage` are metrics that Flink lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """How a metric's value changes over time."""

    COUNTER = "counter"
    """It grows, and starts with the job's current run."""
    GAUGE = "gauge"
    """Its value at the time of reading."""
    HISTOGRAM = "histogram"
    """Quantiles of the latest values, and the sum and the count of all of the current run."""


class MetricScope(StrEnum):
    """The subject of each value of a metric, besides a job."""

    JOB = "job"
    TASK_MANAGER = "tm"
    SUBTASK = "subtask"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `meaning` is a sentence."""

    name: str
    kind: MetricKind
    scope: MetricScope
    unit: str
    meaning: str


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind
_JOB, _TM, _SUBTASK = MetricScope

METRICS = (
    Metric(
        "fileMerging.logicalFileCount",
        _GAUGE,
        _JOB,
        "segments",
        "Segments that some checkpoint may need.",
    ),
    Metric("fileMerging.logicalFileSize", _GAUGE, _JOB, "bytes", "Their size."),
    Metric(
        "fileMerging.physicalFileCount",
        _GAUGE,
        _JOB,
        "files",
        "Physical files that are whole and not deleted yet.",
    ),
    Metric("fileMerging.physicalFileSize", _GAUGE, _JOB, "bytes", "Their size."),
    Metric(
        "ChangelogStorage.numberOfUploadRequests",
        _COUNTER,
        _TM,
        "requests",
        "Requests that uploads of changelog have sent: firsts, retries and hedges.",
    ),
    Metric(
        "ChangelogStorage.numberOfUploadFailures",
        _COUNTER,
        _TM,
        "uploads",
        "Uploads of changelog that failed whole and that a later group commit has counted.",
    ),
    Metric(
        "ChangelogStorage.uploadSizes",
        _HISTOGRAM,
        _TM,
        "bytes",
        "Bytes that a group commit has uploaded.",
    ),
    Metric(
        "ChangelogStorage.uploadLatenciesNanos",
        _HISTOGRAM,
        _TM,
        "nanoseconds",
        "From a group commit's first request to the answer that counts, to the millisecond.",
    ),
    Metric(
        "ChangelogStorage.attemptsPerUpload",
        _HISTOGRAM,
        _TM,
        "requests",
        "The number of the request that counts, from 1.",
    ),
    Metric(
        "ChangelogStorage.totalAttemptsPerUpload",
        _HISTOGRAM,
        _TM,
        "requests",
        "All requests of a group commit, those included that still ran when it ended.",
    ),
    Metric(
        "ChangelogStorage.uploadBatchSizes",
        _HISTOGRAM,
        _TM,
        "segments",
        "Segments in a group commit's files.",
    ),
    Metric(
        "ChangelogStorage.uploadQueueSize",
        _GAUGE,
        _TM,
        "uploads",
        "Uploads of the executor that were in flight when its latest group commit asked.",
    ),
    Metric(
        "changelogBusyTimeMsPerSecond",
        _GAUGE,
        _TM,
        "ms per second",
        "Waiting of uploads for room in flight, averaged over the last minute; waits at the same "
        "time add up.",
    ),
    Metric(
        "ChangelogMaterialization.startedMaterialization",
        _COUNTER,
        _SUBTASK,
        "materializations",
        "Materializations that a process has begun.",
    ),
    Metric(
        "ChangelogMaterialization.completedMaterialization",
        _COUNTER,
        _SUBTASK,
        "materializations",
        "Those that succeeded, also with nothing to write.",
    ),
    Metric(
        "ChangelogMaterialization.failedMaterialization",
        _COUNTER,
        _SUBTASK,
        "materializations",
        "Those that ended with an error. A killed one is neither.",
    ),
    Metric(
        "ChangelogMaterialization.lastDurationOfMaterialization",
        _GAUGE,
        _SUBTASK,
        "ms",
        "Duration of the last completed one.",
    ),
    Metric(
        "ChangelogStateBackend.lastFullSizeOfMaterialization",
        _GAUGE,
        _SUBTASK,
        "bytes",
        "Bytes of the last one that wrote bases.",
    ),
    Metric(
        "ChangelogStateBackend.lastIncSizeOfMaterialization",
        _GAUGE,
        _SUBTASK,
        "bytes",
        "Bytes of the last one that wrote an increment.",
    ),
    Metric(
        "ChangelogStateBackend.lastFullSizeOfNonMaterialization",
        _GAUGE,
        _SUBTASK,
        "bytes",
        "Changelog of the subtask in the newest whole checkpoint, which a restore replays.",
    ),
    Metric(
        "ChangelogStateBackend.lastIncSizeOfNonMaterialization",
        _GAUGE,
        _SUBTASK,
        "bytes",
        "Bytes that this checkpoint has added to it.",
    ),
    Metric(
        "FilePool.waitMillis",
        _HISTOGRAM,
        _TM,
        "ms",
        "Time that a group commit waited for a file of a pool that blocks.",
    ),
    Metric(
        "Storage.spaceAmplification",
        _GAUGE,
        _JOB,
        "ratio",
        "Physical over logical size, from 1; missing where no segment is live.",
    ),
    Metric(
        "Storage.rewriteBytes",
        _COUNTER,
        _SUBTASK,
        "bytes",
        "State that was written again, by completed materializations.",
    ),
    Metric(
        "Storage.failedDeletes",
        _GAUGE,
        _JOB,
        "files",
        "Files whose last delete failed and that are still to be deleted.",
    ),
    Metric(
        "Storage.orphanFiles",
        _GAUGE,
        _JOB,
        "files",
        "Files with a write intent which nobody can seal any more and that are not deleted yet.",
    ),
)
"""In the order of the documentation."""
