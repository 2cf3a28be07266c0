"""A job with damaged segments: its batches run here, and bytes in its storage are changed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cairn.catalog.job.segments import segments_at
from cairn.handles import SegmentHandle
from cairn.maintenance.scrub import scrub_job
from metastore.enums import SegmentKind
from tests.maintenance.folds import FoldedJob
from tests.runtime.tasks import BIG, EVERYTHING, read_back, remembered

COVERING = (SegmentKind.KEYED_FULL, SegmentKind.KEYED_INCREMENT)


class DamagedJob(FoldedJob):
    """A job whose newest bases an older checkpoint, which is retained, does without."""

    def grow(self) -> int:
        """Makes bases twice, and two batches after each; returns the newest checkpoint."""
        for _ in range(2):
            self.run(3)
            self.fold()
        return self.run(2)

    def handles(self, checkpoint_id: int) -> list[SegmentHandle]:
        return self.catalog.run(
            "reading", lambda c: segments_at(c, self.plan.job_id, checkpoint_id, EVERYTHING)
        )

    def bases(self, checkpoint_id: int) -> list[SegmentHandle]:
        return [one for one in self.handles(checkpoint_id) if one.kind in COVERING]

    def object_at(self, path: str) -> Path:
        return Path(self.plan.storage.removeprefix("file://")) / path

    def flip(self, handle: SegmentHandle) -> None:
        """Changes a bit in the middle of a segment."""
        with self.object_at(handle.path).open("r+b") as file:
            file.seek(handle.offset + handle.size_bytes // 2)
            [byte] = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))

    def scrub(self) -> int:
        """Reads all; returns how many segments are damaged."""
        return scrub_job(self.catalog, self.plan.job, sample_percent=None).damaged_segments

    def damage(self, *handles: SegmentHandle) -> None:
        """Changes segments, and lets a scrub find it."""
        for one in handles:
            self.flip(one)
        assert self.scrub() >= len(handles)

    def damaged(self) -> list[tuple[str, Sequence[int], bool]]:
        """Returns each damaged segment with who needs it: checkpoints, and whether the next do."""
        return [
            (str(segment_id), checkpoints, is_needed)
            for segment_id, checkpoints, is_needed in self.sql(
                "SELECT segment_id, checkpoints, is_needed_by_next FROM cairn.v_damaged_segments"
                " WHERE job_id = :job ORDER BY segment_id"
            )
        ]

    def lose_local_state(self) -> None:
        """Makes the next batch restore from storage."""
        shutil.rmtree(self.plan.settings.local_dir)
        self.restart(self.plan.parallelism)

    def state(self) -> dict[bytes, bytes]:
        return remembered(self.batches) | BIG

    def assert_reads_back(self, checkpoint_id: int) -> None:
        assert read_back(self.plan, checkpoint_id) == self.state()

    def tables(self, *tables: str) -> list[Any]:
        return [self.sql(f"SELECT to_jsonb(t) FROM cairn.{t} AS t ORDER BY 1") for t in tables]  # noqa: S608
