"""A job with real objects in which dead segments lie beside live ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from cairn.catalog.job.files import IntendedFile, WrittenFile, intend_files
from cairn.catalog.job.materializations import install, replay_of
from cairn.catalog.job.segments import segments_at
from cairn.handles import DirectoryHandle, SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange
from cairn.layout import shared_directory, shared_file
from cairn.storage import ObjectStore, open_store
from metastore.enums import KEYED, Damage, Scope, SegmentKind
from tests.metastore.steps import MAX_PARALLELISM, Steps

Content = list[tuple[str, KeyGroupRange, int, int, str, bytes]]
"""Of a checkpoint's bases and increments in order of replay, with their bytes."""


@dataclass
class WastefulJob(Steps):
    """A job of two subtasks whose materializations write objects; changelog has none."""

    size_bytes: int = 1000
    batches: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    def create(self, **changes: Any) -> WastefulJob:
        """Registers it and confirms two batches; the next one is under way."""
        self.register(**changes)
        self.go_on(2)
        return self

    @property
    def store(self) -> ObjectStore:
        return open_store(self.storage)

    @property
    def epoch(self) -> int:
        return max(self.run_ids)

    def go_on(self, batches: int = 1) -> None:
        """Acknowledges the batch under way and more, and begins another."""
        for _ in range(batches):
            self.whole_batch(self.epoch, self.batches)
            self.batches += 1
        self.begin(self.ref(self.epoch, self.batches))

    @property
    def confirmed(self) -> int:
        """The newest checkpoint that Spark has committed."""
        return max(c for c, status in self.statuses().items() if status == "CONFIRMED")

    @property
    def next_checkpoint(self) -> int:
        [(next_id,)] = self.sql("SELECT next_checkpoint_id FROM cairn.jobs WHERE job_id = :job")
        return int(next_id)

    def materialize(
        self,
        subtask: int,
        groups: Sequence[tuple[int, int]],
        kind: SegmentKind = SegmentKind.KEYED_FULL,
    ) -> list[SegmentHandle]:
        """Writes one file with a segment for each range of key groups, and installs them."""
        as_of, share = self.confirmed, KeyGroupRange(groups[0][0], groups[-1][1])
        replaced = None
        if kind is SegmentKind.KEYED_INCREMENT:
            replaced = self.run(lambda c: replay_of(c, self.job_id, as_of, share))
        batch, parallelism = self.ref(self.epoch, self.batches), self.parallelism[self.epoch]
        file_id = str(uuid4())
        path = shared_file(self.job_id, subtask, parallelism, file_id)
        directory = DirectoryHandle(
            path=shared_directory(self.job_id, subtask, parallelism),
            scope=Scope.SHARED,
            subtask=subtask,
            parallelism=parallelism,
        )
        intended = IntendedFile(file_id=file_id, path=path, scope=Scope.SHARED)
        self.run_each(lambda c: intend_files(c, batch, [intended], [directory]))
        data = [self._random.randbytes(self.size_bytes) for _ in groups]
        self.store.put(path, data)
        handles = [
            SegmentSpec.of(
                one,
                kind=kind,
                key_groups=KeyGroupRange(*range_),
                entries=3,
                checkpoint_id=as_of,
            ).at(path, place * self.size_bytes)
            for place, (range_, one) in enumerate(zip(groups, data, strict=True))
        ]
        file = WrittenFile(file_id, len(groups) * self.size_bytes)
        made = [(file, handle) for handle in handles]
        self.run(lambda c: install(c, batch, subtask, made, replaced))
        return handles

    def waste(self) -> str:
        """Makes a file of which one segment in four is live; returns its path."""
        [first, *_] = self.materialize(0, [(0, 1), (1, 2), (2, 3), (3, 4)])
        self.go_on()
        self.materialize(0, [(0, 3)])
        self.subsume()
        return first.path

    def subsume(self) -> None:
        """Makes what only older checkpoints needed die, and deletes it."""
        self.go_on(4)
        self.clean()

    def adopt(self, path: str, kind: str) -> None:
        """Adds a segment to a file as a restored job has them: placed, beside bases."""
        self.sql(
            "INSERT INTO cairn.placed_segments (segment_id, job_id, file_id, kind, subtask,"
            " key_groups, offset_bytes, size_bytes, sha256, entries, first_checkpoint,"
            " as_of_checkpoint) SELECT gen_random_uuid(), f.job_id, f.file_id, :kind, 0, '[0,4)',"
            " 0, 10, '00', 1, 1, 1 FROM cairn.physical_files AS f WHERE f.path = :path",
            path=path,
            kind=kind,
        )

    def find_damage(self, path: str) -> None:
        """Records what a scrub does that finds all live segments of a file damaged."""
        self.sql(
            "INSERT INTO cairn.damaged_segments (file_id, segment_id, job_id, damage)"
            " SELECT file_id, segment_id, job_id, :damage FROM cairn.placed_segments"
            " JOIN cairn.physical_files USING (file_id, job_id)"
            " WHERE path = :path AND placed_segments.status = 'LIVE'",
            path=path,
            damage=Damage.CORRUPT.value,
        )

    def placed(self, checkpoint_id: int) -> list[SegmentHandle]:
        """Returns the bases and increments of a checkpoint in order of replay."""
        everything = KeyGroupRange(0, MAX_PARALLELISM)
        handles = self.run(lambda c: segments_at(c, self.job_id, checkpoint_id, everything))
        return [
            one for one in handles if one.kind in KEYED and one.kind is not SegmentKind.CHANGELOG
        ]

    def content(self, checkpoint_id: int) -> Content:
        """Returns what a restore to a checkpoint reads of bases and increments."""
        return [
            (
                one.kind.value,
                one.key_groups,
                one.as_of_checkpoint,
                one.entries,
                one.sha256,
                self.store.get(one.path, one.offset, one.size_bytes),
            )
            for one in self.placed(checkpoint_id)
        ]

    def retained(self) -> dict[int, Content]:
        """Returns the content of every checkpoint that is not over."""
        kept = ("IN_PROGRESS", "COMPLETED", "CONFIRMED")
        return {c: self.content(c) for c, status in self.statuses().items() if status in kept}

    def objects(self) -> set[str]:
        """Returns the paths of its objects, without owner objects."""
        paths = {stored.path for stored in self.store.list(f"{self.job_id}/")}
        return {path for path in paths if "/owner/" not in path}

    def known(self) -> set[str]:
        """Returns the paths of the files that are not deleted, and have an object."""
        rows = self.sql(
            "SELECT path FROM cairn.physical_files WHERE job_id = :job AND status <> 'DELETED'"
            " AND (path LIKE '%/shared/%' OR path LIKE '%/maintenance/%')"
        )
        return {str(path) for (path,) in rows}

    def dead_bytes(self, path: str) -> int:
        [(size_bytes,)] = self.sql(
            "SELECT dead_bytes FROM cairn.physical_files WHERE path = :path", path=path
        )
        return int(size_bytes)

    def end_leases(self) -> None:
        """Lets every lease run out, as if its time had passed."""
        self.sql(
            "UPDATE cairn.maintenance_runs SET leased_until = clock_timestamp()"
            " WHERE job_id = :job AND status = 'RUNNING'"
        )
