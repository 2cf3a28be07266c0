"""Which checkpoints, segments and files of a job to delete. Pure: a snapshot in, a plan out."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from cairn.catalog.cleanup.snapshot import (
    CleanupSnapshot,
    ReleasedCommit,
    ReleasedSegment,
    SealedFile,
    UnneededFile,
    subsumed_of,
)
from cairn.errors import RefusedError

LEAST_RETAINED = 2
"""Spark may replay the newest batch, which starts from the checkpoint before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Placed ones. Those of group commits die with these."""
    dead_commits: tuple[UUID, ...]
    segments_in_commits: int
    condemned_files: tuple[UnneededFile, ...]
    freed_bytes: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (
            self.subsumed_checkpoints
            or self.dead_segments
            or self.dead_commits
            or self.condemned_files
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON values: lists, objects, text and numbers."""
        # Through JSON, so that the plan that is stored and the plan that is hashed are the same.
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain


def plan_subsumption(snapshot: CleanupSnapshot) -> SubsumptionPlan:
    """Returns what can be deleted of a job.

    The newest `num_retained` confirmed checkpoints stay, all that are pinned, and all that are not
    confirmed. A released segment or group commit dies when no retained checkpoint lies in its
    interval, and a sealed file is condemned with its last live segment. Which other files
    nothing needs, the snapshot says.

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
    subsumed = subsumed_of(snapshot.checkpoints, job.num_retained)
    # With all that are not confirmed: one of them may be aborted and started again (ADR 0009).
    retained = sorted({c.checkpoint_id for c in snapshot.checkpoints} - set(subsumed))
    dying = [segment for segment in snapshot.segments if not _is_needed(segment, retained)]
    commits = [commit for commit in snapshot.commits if not _is_needed(commit, retained)]
    deaths = Counter(segment.file_id for segment in dying)
    for commit in commits:
        if commit.file_id is not None:
            deaths[commit.file_id] += commit.live_segments
    condemned = [*snapshot.unneeded_files, *_emptied(snapshot.sealed_files, deaths)]
    return SubsumptionPlan(
        job=job.name,
        epoch=job.current_epoch,
        retained_checkpoints=tuple(retained),
        subsumed_checkpoints=tuple(subsumed),
        dead_segments=tuple(sorted(segment.segment_id for segment in dying)),
        dead_commits=tuple(sorted(commit.commit_id for commit in commits)),
        segments_in_commits=sum(commit.live_segments for commit in commits),
        condemned_files=tuple(sorted(condemned, key=lambda file: file.file_id)),
        freed_bytes=sum(file.size_bytes or 0 for file in condemned),
    )


def _is_needed(segment: ReleasedSegment | ReleasedCommit, retained: Sequence[int]) -> bool:
    """Tells whether one of the retained checkpoints, in ascending order, holds the segment."""
    at = bisect_left(retained, segment.first_checkpoint)
    return at < len(retained) and retained[at] < segment.released_checkpoint


def _emptied(files: Iterable[SealedFile], deaths: Mapping[UUID, int]) -> Iterator[UnneededFile]:
    """Yields the files all of whose live segments die."""
    # By count: the snapshot has the released segments only, the file's row counts all live ones.
    for file in files:
        # One without any is among those that nothing needs already.
        if 0 < file.live_segments == deaths.get(file.file_id, 0):
            yield UnneededFile(
                file_id=file.file_id,
                path=file.path,
                size_bytes=file.size_bytes,
                reason="sealed, and no retained checkpoint needs its last live segments "
                f"({file.live_segments})",
            )
