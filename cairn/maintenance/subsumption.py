"""Which checkpoints, segments and files of a job to delete. Pure: a snapshot in, a plan out."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from cairn.catalog.cleanup.snapshot import JobFacts, ReleasedSegment, UndeletedFile, UpkeepSnapshot
from cairn.errors import RefusedError
from metastore.enums import CheckpointStatus, FileStatus

LEAST_RETAINED = 2
"""Spark may replay the newest batch, which starts from the checkpoint before it."""


@dataclass(frozen=True, slots=True)
class CondemnedFile:
    """A file to delete, and why, in words. `size_bytes` is None where nothing was sealed."""

    file_id: UUID
    path: str
    size_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class SubsumptionPlan:
    """What can be deleted of one job, each list in order of its ids.

    `epoch` and `retained_checkpoints` are what the plan was made from. `freed_bytes` is the sum
    of the condemned files' sizes.
    """

    job: str
    epoch: int
    retained_checkpoints: tuple[int, ...]
    subsumed_checkpoints: tuple[int, ...]
    dead_segments: tuple[UUID, ...]
    condemned_files: tuple[CondemnedFile, ...]
    freed_bytes: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.subsumed_checkpoints or self.dead_segments or self.condemned_files)

    @property
    def sha256(self) -> str:
        """The hex digest of the plan's canonical JSON: equal plans have equal digests."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON values: lists, objects, text and numbers."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> SubsumptionPlan:
        """Returns the plan that `to_json` gave."""
        files = ({**file, "file_id": UUID(file["file_id"])} for file in plain["condemned_files"])
        return cls(
            **{
                **plain,
                "retained_checkpoints": tuple(plain["retained_checkpoints"]),
                "subsumed_checkpoints": tuple(plain["subsumed_checkpoints"]),
                "dead_segments": tuple(map(UUID, plain["dead_segments"])),
                "condemned_files": tuple(CondemnedFile(**file) for file in files),
            }
        )


def plan_subsumption(snapshot: UpkeepSnapshot) -> SubsumptionPlan:
    """Returns what can be deleted of a job.

    The newest `num_retained` confirmed checkpoints stay, all that are pinned, and all that are not
    confirmed. A released segment dies when no retained checkpoint lies in its interval; a sealed
    file is condemned when its last live segment dies. A file being written is condemned when nobody
    may seal it any more, and no request for it can be in flight.

    Raises:
        RefusedError: the job retains fewer than `LEAST_RETAINED` checkpoints.
    """
    job = snapshot.job
    if job.num_retained < LEAST_RETAINED:
        raise RefusedError(
            f"num_retained is {job.num_retained}, but a restart may need {LEAST_RETAINED} "
            "checkpoints. Set cairn.num-retained to that or more and start the job once",
            job=job.name,
        )
    subsumed = _subsumed(snapshot)
    retained = sorted({c.checkpoint_id for c in snapshot.checkpoints} - set(subsumed))
    dying = [segment for segment in snapshot.segments if not _is_needed(segment, retained)]
    condemned = _condemned(job, snapshot.files, dying)
    return SubsumptionPlan(
        job=job.name,
        epoch=job.current_epoch,
        retained_checkpoints=tuple(retained),
        subsumed_checkpoints=tuple(subsumed),
        dead_segments=tuple(sorted(segment.segment_id for segment in dying)),
        condemned_files=tuple(condemned),
        freed_bytes=sum(file.size_bytes or 0 for file in condemned),
    )


def _subsumed(snapshot: UpkeepSnapshot) -> list[int]:
    confirmed = sorted(
        checkpoint.checkpoint_id
        for checkpoint in snapshot.checkpoints
        if checkpoint.status is CheckpointStatus.CONFIRMED
    )
    pinned = {c.checkpoint_id for c in snapshot.checkpoints if c.is_pinned}
    return [old for old in confirmed[: -snapshot.job.num_retained] if old not in pinned]


def _is_needed(segment: ReleasedSegment, retained: Sequence[int]) -> bool:
    """Tells whether one of the retained checkpoints, in ascending order, holds the segment."""
    at = bisect_left(retained, segment.first_checkpoint)
    return at < len(retained) and retained[at] < segment.released_checkpoint


def _condemned(
    job: JobFacts, files: Iterable[UndeletedFile], dying: Iterable[ReleasedSegment]
) -> list[CondemnedFile]:
    deaths = Counter(segment.file_id for segment in dying)
    condemned = []
    for file in sorted(files, key=lambda file: file.file_id):
        reason = _why_condemned(file, deaths[file.file_id], job.current_epoch)
        if reason is not None:
            condemned.append(CondemnedFile(file.file_id, file.path, file.size_bytes, reason))
    return condemned


def _why_condemned(file: UndeletedFile, deaths: int, current_epoch: int) -> str | None:
    """Returns why to delete the file, None to keep it. `deaths` of its live segments die now."""
    if file.status is FileStatus.SEALED and file.live_segments == deaths:
        if deaths == 0:
            return "sealed, and holds no live segment"
        return f"sealed, and no retained checkpoint needs its last live segments ({deaths})"
    if file.status is not FileStatus.WRITING or file.may_appear:
        return None
    if file.epoch < current_epoch:
        return (
            f"its writer, run {file.epoch}, was replaced by run {current_epoch} and can never "
            "seal it"
        )
    if file.is_lost:
        return "nobody may seal it any more: its batch is over, or another request has won"
    return None
