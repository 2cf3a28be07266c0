"""What the benchmark measures, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.workloads import Workload


@dataclass(frozen=True, slots=True)
class Repetition:
    """One start of a stream, with intact local state, and its batches.

    Attributes:
        restart_ms: from building the plan to the end of the first batch.
        first_batch_ms: the first batch, as Spark's progress tells it.
        add_batch_ms: `durationMs.addBatch` of the batches after the first.
        trigger_ms: `durationMs.triggerExecution` of the same.
        files: state files that appeared in storage, over all batches, without the next two.
        snapshot_files: native's snapshots or Cairn's bases and manifests, written by the clock.
        checksum_files: checksums that Hadoop's local file system adds.
        requests: how many S3 got in each of the same.
        batches: how many batches there were, the first one too.
        materializing: the share of each of the same batches in which a subtask was materialized.
    """

    restart_ms: int
    first_batch_ms: int
    add_batch_ms: list[int]
    trigger_ms: list[int]
    files: int
    snapshot_files: int
    checksum_files: int
    requests: list[int]
    batches: int
    materializing: list[float]


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The peak of the worker that used most.

    Attributes:
        uss_bytes: its unique set size: the pages that it alone has mapped.
        without_lmdb_bytes: the same without the pages of LMDB's file, which the system can drop.
    """

    uss_bytes: int
    without_lmdb_bytes: int


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured on one workload, by engine name."""

    workload: Workload
    repetitions: dict[str, list[Repetition]]
    memory: dict[str, WorkerMemory] = field(default_factory=dict)
