"""Every metric of the view `v_metrics`: its name, kind, unit and meaning. The values are in SQL.

Names with the groups `fileMerging`, `ChangelogStorage`, `ChangelogMaterialization` and
`ChangelogStateBackend`, and `changelogBusyTimeMsPerSecond`, are Flink's; those with `FilePool`,
`Storage` and `Maintenance` are metrics that Flink lacks.
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
    ACTION = "action"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric; `meaning` is a sentence."""

    name: str
    kind: MetricKind
    scope: MetricScope
    unit: str
    meaning: str


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind
_JOB, _TM, _SUBTASK, _ACTION = MetricScope

METRICS = (
    Metric(
        name="fileMerging.logicalFileCount",
        kind=_GAUGE,
        scope=_JOB,
        unit="segments",
        meaning="Segments that some checkpoint may need.",
    ),
    Metric(
        name="fileMerging.logicalFileSize",
        kind=_GAUGE,
        scope=_JOB,
        unit="bytes",
        meaning="Their size.",
    ),
    Metric(
        name="fileMerging.physicalFileCount",
        kind=_GAUGE,
        scope=_JOB,
        unit="files",
        meaning="Physical files that are whole and not deleted yet.",
    ),
    Metric(
        name="fileMerging.physicalFileSize",
        kind=_GAUGE,
        scope=_JOB,
        unit="bytes",
        meaning="Their size.",
    ),
    Metric(
        name="ChangelogStorage.numberOfUploadRequests",
        kind=_COUNTER,
        scope=_TM,
        unit="requests",
        meaning="Requests that uploads of changelog have sent: firsts, retries and hedges.",
    ),
    Metric(
        name="ChangelogStorage.numberOfUploadFailures",
        kind=_COUNTER,
        scope=_TM,
        unit="uploads",
        meaning="Uploads of changelog that failed whole and that a later group commit has counted.",
    ),
    Metric(
        name="ChangelogStorage.uploadSizes",
        kind=_HISTOGRAM,
        scope=_TM,
        unit="bytes",
        meaning="Bytes that a group commit has uploaded.",
    ),
    Metric(
        name="ChangelogStorage.uploadLatenciesNanos",
        kind=_HISTOGRAM,
        scope=_TM,
        unit="nanoseconds",
        meaning="From a group commit's first request to the answer that counts, "
        "to the millisecond.",
    ),
    Metric(
        name="ChangelogStorage.attemptsPerUpload",
        kind=_HISTOGRAM,
        scope=_TM,
        unit="requests",
        meaning="The number of the request that counts, from 1.",
    ),
    Metric(
        name="ChangelogStorage.totalAttemptsPerUpload",
        kind=_HISTOGRAM,
        scope=_TM,
        unit="requests",
        meaning="All requests of a group commit, those included that still ran when it ended.",
    ),
    Metric(
        name="ChangelogStorage.uploadBatchSizes",
        kind=_HISTOGRAM,
        scope=_TM,
        unit="segments",
        meaning="Segments in a group commit's files.",
    ),
    Metric(
        name="ChangelogStorage.uploadQueueSize",
        kind=_GAUGE,
        scope=_TM,
        unit="uploads",
        meaning="Uploads of the executor that were in flight when its latest group commit asked.",
    ),
    Metric(
        name="changelogBusyTimeMsPerSecond",
        kind=_GAUGE,
        scope=_TM,
        unit="ms per second",
        meaning="Waiting of uploads for room in flight, averaged over the last minute; waits at "
        "the same time add up.",
    ),
    Metric(
        name="ChangelogMaterialization.startedMaterialization",
        kind=_COUNTER,
        scope=_SUBTASK,
        unit="materializations",
        meaning="Materializations that a process has begun.",
    ),
    Metric(
        name="ChangelogMaterialization.completedMaterialization",
        kind=_COUNTER,
        scope=_SUBTASK,
        unit="materializations",
        meaning="Those that succeeded, also with nothing to write.",
    ),
    Metric(
        name="ChangelogMaterialization.failedMaterialization",
        kind=_COUNTER,
        scope=_SUBTASK,
        unit="materializations",
        meaning="Those that ended with an error. A killed one is neither.",
    ),
    Metric(
        name="ChangelogMaterialization.lastDurationOfMaterialization",
        kind=_GAUGE,
        scope=_SUBTASK,
        unit="ms",
        meaning="Duration of the last completed one.",
    ),
    Metric(
        name="ChangelogStateBackend.lastFullSizeOfMaterialization",
        kind=_GAUGE,
        scope=_SUBTASK,
        unit="bytes",
        meaning="Bytes of the last one that wrote bases.",
    ),
    Metric(
        name="ChangelogStateBackend.lastIncSizeOfMaterialization",
        kind=_GAUGE,
        scope=_SUBTASK,
        unit="bytes",
        meaning="Bytes of the last one that wrote an increment.",
    ),
    Metric(
        name="ChangelogStateBackend.lastFullSizeOfNonMaterialization",
        kind=_GAUGE,
        scope=_SUBTASK,
        unit="bytes",
        meaning="Changelog of the subtask in the newest whole checkpoint, which a restore replays.",
    ),
    Metric(
        name="ChangelogStateBackend.lastIncSizeOfNonMaterialization",
        kind=_GAUGE,
        scope=_SUBTASK,
        unit="bytes",
        meaning="Bytes that this checkpoint has added to it.",
    ),
    Metric(
        name="FilePool.waitMillis",
        kind=_HISTOGRAM,
        scope=_TM,
        unit="ms",
        meaning="Time that a group commit waited for a file of a pool that blocks.",
    ),
    Metric(
        name="Storage.spaceAmplification",
        kind=_GAUGE,
        scope=_JOB,
        unit="ratio",
        meaning="Physical over logical size, from 1, without files that wait; missing where no "
        "segment is live.",
    ),
    Metric(
        name="Storage.rewriteBytes",
        kind=_COUNTER,
        scope=_SUBTASK,
        unit="bytes",
        meaning="State that was written again, by completed materializations.",
    ),
    Metric(
        name="Storage.failedDeletes",
        kind=_GAUGE,
        scope=_JOB,
        unit="files",
        meaning="Files whose last delete failed and that are still to be deleted.",
    ),
    Metric(
        name="Storage.damagedSegments",
        kind=_GAUGE,
        scope=_JOB,
        unit="segments",
        meaning="Segments that a scrub has found damaged and that a checkpoint needs.",
    ),
    Metric(
        name="Storage.orphanFiles",
        kind=_GAUGE,
        scope=_JOB,
        unit="files",
        meaning="Files with a write intent which nobody can seal any more and that are not "
        "deleted yet.",
    ),
    Metric(
        name="Storage.waitingFiles",
        kind=_GAUGE,
        scope=_JOB,
        unit="files",
        meaning="Condemned files that wait until `cairn.file-retention` is over.",
    ),
    Metric(
        name="Storage.waitingBytes",
        kind=_GAUGE,
        scope=_JOB,
        unit="bytes",
        meaning="Their size.",
    ),
    Metric(
        name="Maintenance.secondsSinceLastGoodRun",
        kind=_GAUGE,
        scope=_ACTION,
        unit="s",
        meaning="Since a maintenance action was last done for the job, or had nothing to do.",
    ),
)
"""In the order of the documentation."""
