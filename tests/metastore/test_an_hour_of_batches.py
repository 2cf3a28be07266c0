"""Metadata of an hour of batches, one a second, with the default options and the DAG's cleanup."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from cairn.catalog.job.batch_start import Clock
from cairn.catalog.job.files import WrittenFile
from cairn.catalog.job.materializations import install, replay_of
from cairn.handles import SegmentHandle
from cairn.keygroups import range_of
from cairn.runtime.materialization.schedule import is_due
from cairn.runtime.materialization.write import FULL_FROM_SHARE
from cairn.settings import Settings
from metastore.enums import SegmentKind
from tests.metastore.steps import MAX_PARALLELISM, Steps

HOUR_S, CLEANUP_S = 3600, 600
SUBTASKS = 2
CHANGELOG_BYTES, BASE_BYTES = 100, 1_000_000
"""So an interval brings 6 % of the bases, and both increments and bases come within the hour."""

_CHECKPOINTS = """
    INSERT INTO cairn.checkpoints
        (job_id, checkpoint_id, epoch, query_id, batch_id, parallelism, parent_checkpoint)
    SELECT job_id, next_checkpoint_id + n, 1, 'q', CAST(:batch AS bigint) + n, 2,
        next_checkpoint_id + n - 1
    FROM cairn.jobs, generate_series(0, CAST(:count AS bigint) - 1) n WHERE job_id = :job
"""
_FILES = """
    INSERT INTO cairn.physical_files (file_id, job_id, epoch, path, scope, batch_id)
    SELECT gen_random_uuid(), job_id, 1, job_id || '/taskmanager-owned/tm/bulk-' || batch_id,
        'taskmanager', batch_id
    FROM cairn.checkpoints WHERE job_id = :job AND status = 'IN_PROGRESS'
"""
_SEAL = """
    UPDATE cairn.physical_files SET status = 'SEALED', size_bytes = 200, sealed_at = now()
    WHERE job_id = :job AND status = 'WRITING'
"""
_SEGMENTS = """
    INSERT INTO cairn.placed_segments
        (segment_id, job_id, file_id, kind, subtask, key_groups, offset_bytes, size_bytes, sha256,
         entries, first_checkpoint, as_of_checkpoint)
    SELECT gen_random_uuid(), job_id, file_id, 'changelog', subtask,
        int4range(4 * subtask, 4 * subtask + 4), 100 * subtask, 100, '00', 1,
        checkpoint_id, checkpoint_id
    FROM cairn.checkpoints JOIN cairn.physical_files USING (job_id, batch_id),
        generate_series(0, 1) subtask
    WHERE job_id = :job AND checkpoints.status = 'IN_PROGRESS'
"""
_TO_STATUS = """
    UPDATE cairn.checkpoints SET status = CAST(:status AS text) WHERE job_id = :job
    AND status = CAST(:before AS text)
"""
_NEXT_ID = """
    UPDATE cairn.jobs SET next_checkpoint_id = next_checkpoint_id + CAST(:count AS bigint)
    WHERE job_id = :job
"""


@dataclass
class Hour:
    """A job with a batch a second; most batches are made as rows, many at once."""

    steps: Steps
    settings: Settings = field(default_factory=Settings)
    batch_id: int = 0
    done_ms: list[int] = field(default_factory=lambda: [0] * SUBTASKS)
    made: list[SegmentKind] = field(default_factory=list)

    def due(self, second: int) -> list[int]:
        clock = Clock(second * 1000, 0, {})
        interval_ms = self.settings.materialize_interval_ms
        return [
            i
            for i in range(SUBTASKS)
            if is_due(
                clock,
                self.done_ms[i],
                subtask=i,
                parallelism=SUBTASKS,
                interval_ms=interval_ms,
            )
        ]

    def skip_to(self, batch_id: int) -> None:
        """Makes the rows that batches before this one leave."""
        count = batch_id - self.batch_id
        if count:
            self.steps.sql(_TO_STATUS, before="COMPLETED", status="CONFIRMED")
            self.steps.sql(_CHECKPOINTS, batch=self.batch_id, count=count)
            for statement in (_FILES, _SEAL, _SEGMENTS):
                self.steps.sql(statement)
            self.steps.sql(_NEXT_ID, count=count)
            self.steps.sql(_TO_STATUS, before="IN_PROGRESS", status="COMPLETED")
            self.steps.sql(
                _TO_STATUS + " AND batch_id < :last",
                before="COMPLETED",
                status="CONFIRMED",
                last=batch_id - 1,
            )
        self.batch_id = batch_id

    def batch(self) -> int:
        """Does a whole batch by the protocol's own transactions; returns its checkpoint."""
        checkpoint_id = self.steps.whole_batch(1, self.batch_id)
        self.batch_id += 1
        return checkpoint_id

    def materialize(self, subtask: int, as_of: int, second: int) -> None:
        """Installs what a materialization would write, in the sizes it would have."""
        key_groups = range_of(subtask, SUBTASKS, MAX_PARALLELISM)
        replay = self.steps.run(
            lambda c: replay_of(c, self.steps.job_id, as_of, key_groups),
        )
        is_full = not replay.is_based or replay.share > FULL_FROM_SHARE
        kind = SegmentKind.KEYED_FULL if is_full else SegmentKind.KEYED_INCREMENT
        size_bytes = BASE_BYTES if is_full else sum(c.size_bytes for c in replay.changes)
        batch = self.steps.ref(1, self.batch_id - 1)
        file, handle = self.steps.base(batch, as_of, (key_groups.start, key_groups.end), kind)
        sized: tuple[WrittenFile, SegmentHandle] = (
            replace(file, size_bytes=size_bytes),
            replace(handle, size_bytes=size_bytes),
        )
        replaced = None if is_full else replay.changes
        self.steps.run(lambda c: install(c, batch, subtask, [sized], replaced))
        self.done_ms[subtask] = second * 1000
        self.made.append(kind)

    def most_live(self) -> int:
        """Returns the live segments of the subtask that has most."""
        rows = self.steps.sql(
            "SELECT count(*) FROM cairn.segments WHERE job_id = :job AND status = 'LIVE'"
            " GROUP BY subtask"
        )
        return max(int(count) for (count,) in rows)


@pytest.fixture
def hour(shared_metastore_url: str, tmp_storage: str) -> Hour:
    steps = Steps(shared_metastore_url, tmp_storage)
    steps.register(SUBTASKS)
    return Hour(steps)


def test_an_hour_of_one_second_batches_leaves_a_bounded_number_of_live_segments(
    hour: Hour,
) -> None:
    most = 0
    hour.batch()  # binds the job to its query
    for second in range(1, HOUR_S + 1):
        due, is_cleaned = hour.due(second), second % CLEANUP_S == 0
        if not due and not is_cleaned:
            continue
        hour.skip_to(second)
        checkpoint_id = hour.batch()
        most = max(most, hour.most_live())
        for subtask in due:
            hour.materialize(subtask, checkpoint_id - 1, second)
        if is_cleaned:
            hour.steps.clean()
    assert hour.batch_id == HOUR_S + 1
    assert {SegmentKind.KEYED_FULL, SegmentKind.KEYED_INCREMENT} == set(hour.made)
    interval = hour.settings.materialize_interval_ms // 1000
    # The changelog since the last materialization, what was released since the last cleanup, what
    # retained checkpoints and the batch in progress still need; the bases and the increments.
    assert most <= interval + CLEANUP_S + hour.settings.num_retained + 2 + 4
    assert most > interval, "it would not be seen if nothing were released"
    hour.steps.clean()
    files = hour.steps.sql(
        "SELECT count(*) FROM cairn.physical_files WHERE job_id = :job AND status <> 'DELETED'"
    )
    assert files[0][0] <= interval + hour.settings.num_retained + 2 + 2 * SUBTASKS
