"""What bases and increments replace, and that it dies where nothing needs it and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from cairn.catalog.cleanup.apply import Applied, apply_plan
from cairn.catalog.cleanup.snapshot import read_snapshot
from cairn.catalog.job import segments
from cairn.catalog.job.coverage import Coverage
from cairn.catalog.job.group_commits import StoredSegment
from cairn.catalog.maintenance.plans import NewPlan, store_plan
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange, range_of
from metastore.enums import MaintenanceAction, SegmentKind
from tests.metastore.steps import MAX_PARALLELISM, Steps


@pytest.fixture
def steps(shared_metastore_url: str, tmp_path: Path) -> Steps:
    return Steps(shared_metastore_url, f"file://{tmp_path}")


def test_sql_gives_a_subtask_the_same_key_groups(steps: Steps) -> None:
    steps.register()
    for parallelism, most in ((1, 1), (3, 128), (128, 128), (200, 512), (7, 32768)):
        read = steps.sql(
            "SELECT s, lower(r), upper(r) FROM generate_series(0, :p - 1) AS s"
            " CROSS JOIN LATERAL cairn.key_groups_of(s, :p, :k) AS r",
            p=parallelism,
            k=most,
        )
        assert [KeyGroupRange(low, high) for _, low, high in read] == [
            range_of(subtask, parallelism, most) for subtask in range(parallelism)
        ]


bases = st.lists(
    st.tuples(
        st.integers(0, MAX_PARALLELISM - 1), st.integers(1, MAX_PARALLELISM), st.integers(1, 4)
    ),
    max_size=5,
)


@given(drawn=bases, made_in=st.integers(1, 5), low=st.integers(0, 7), size=st.integers(1, 8))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_sql_and_python_agree_on_what_bases_cover(
    steps: Steps, drawn: list[tuple[int, int, int]], made_in: int, low: int, size: int
) -> None:
    job = replace(steps, name=f"job-{uuid4().hex[:8]}", parallelism={})
    batch = job.ref(job.register(), 0)
    job.begin(batch)
    handles: list[SegmentHandle] = []
    # In this order: a base is refused where a newer one is.
    for start, length, as_of in sorted(drawn, key=lambda base: base[2]):
        end = min(start + length, MAX_PARALLELISM)
        file, handle = job.base(batch, as_of, (start, end))
        job.install(batch, (file, handle))
        handles.append(handle)
    groups = KeyGroupRange(low, min(low + size, MAX_PARALLELISM))
    until = Coverage.of(handles)
    [(covered, released)] = job.sql(
        "SELECT cairn.is_covered(r, :made_in, cairn.covered_until(:job, NULL)),"
        " cairn.released_at(:job, r, :made_in)"
        " FROM int4multirange(int4range(:low, :high)) AS r",
        made_in=made_in,
        low=groups.start,
        high=groups.end,
    )
    assert covered is (until.least(groups) >= made_in)
    assert (released is not None) is covered


def test_changelog_is_kept_while_a_checkpoint_that_a_base_does_not_serve_is_pinned(
    steps: Steps,
) -> None:
    epoch = steps.register()
    for batch_id in range(3):
        steps.whole_batch(epoch, batch_id)
    batch = steps.ref(epoch, 3)
    steps.begin(batch)
    steps.install(batch, steps.base(batch, 3, (0, MAX_PARALLELISM)))
    steps.ack(batch, 4, 0, 1)
    for batch_id in range(4, 8):
        steps.whole_batch(epoch, batch_id)
    steps.sql(
        "INSERT INTO cairn.pins (pin_id, job_id, checkpoint_id, kind)"
        " VALUES (gen_random_uuid(), :job, 2, 'pin')"
    )
    before = steps.segments(2)
    steps.clean()
    assert steps.segments(2) == before
    live = "SELECT checkpoint_id FROM cairn.group_commits WHERE job_id = :job AND status = 'LIVE'"
    assert sorted(c for (c,) in steps.sql(live)) == [1, 2, 4, 5, 6, 7, 8]
    assert steps.sql(
        "SELECT kind FROM cairn.segments WHERE kind = :kind AND job_id = :job",
        kind=SegmentKind.KEYED_FULL.value,
    )


def forged(steps: Steps) -> Applied | None:
    """Applies a plan that lets all group commits of a job die."""
    ids = [i for (i,) in steps.sql("SELECT commit_id FROM cairn.group_commits WHERE job_id = :job")]
    job = steps.run(lambda c: read_snapshot(c, steps.name)).job
    run_id = uuid4()
    steps.run(
        lambda c: store_plan(
            c,
            run_id,
            NewPlan(job_id=job.job_id, action=MaintenanceAction.SUBSUMPTION, plan={}, sha256="00"),
        )
    )
    apply = partial(apply_plan, job=job, run_id=run_id, plan_sha256="00")
    return steps.run(partial(apply, checkpoints=[], segments=[], commits=ids, files=[]))


def test_group_commits_that_no_base_covers_stay_whatever_the_plan_says(steps: Steps) -> None:
    epoch = steps.register()
    for batch_id in range(3):
        steps.whole_batch(epoch, batch_id)
    steps.sql(
        "SET LOCAL session_replication_role = replica;"
        "UPDATE cairn.checkpoints SET status = 'ABORTED' WHERE job_id = :job"
        " AND status = 'COMPLETED'"
    )
    steps.sql(
        "SET LOCAL session_replication_role = replica;"
        "UPDATE cairn.checkpoints SET status = 'SUBSUMED' WHERE job_id = :job"
        " AND status = 'CONFIRMED'"
    )
    assert forged(steps) == Applied(0, 0, 0)


def test_group_commits_that_a_retained_checkpoint_needs_stay_whatever_the_plan_says(
    steps: Steps,
) -> None:
    epoch = steps.register()
    for batch_id in range(3):
        steps.whole_batch(epoch, batch_id)
    batch = steps.ref(epoch, 3)
    steps.begin(batch)
    steps.install(batch, steps.base(batch, 3, (0, MAX_PARALLELISM)))
    steps.sql(
        "SET LOCAL session_replication_role = replica;"
        "UPDATE cairn.checkpoints SET status = 'SUBSUMED' WHERE job_id = :job AND checkpoint_id < 3"
    )
    assert forged(steps) == Applied(0, 0, 0), "the base counts from checkpoint 5 on"


def test_a_restore_finds_the_bases_and_the_changelog_of_one_instant(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = steps.register()
    for batch_id in range(2):
        steps.whole_batch(epoch, batch_id)
    steps.begin(steps.ref(epoch, 2))
    wanted = steps.segments(2)
    read_commits = segments.commits_after

    def later(*args: Any, **named: Any) -> list[StoredSegment]:
        monkeypatch.undo()
        batch = steps.ref(epoch, 2)
        steps.install(batch, steps.base(batch, 2, (0, MAX_PARALLELISM)))
        steps.ack(batch, 3, 0, 1)
        for batch_id in (3, 4, 5):
            steps.whole_batch(epoch, batch_id)
        steps.begin(steps.ref(epoch, 6))
        steps.clean()
        return read_commits(*args, **named)

    monkeypatch.setattr(segments, "commits_after", later)

    def read(connection: Connection) -> list[str]:
        segments.read_one_instant(connection)
        everything = KeyGroupRange(0, MAX_PARALLELISM)
        found = segments.segments_at(connection, steps.job_id, 2, everything)
        return [handle.segment_id for handle in found]

    assert steps.run(read) == wanted
    assert steps.segments(2) == [], "the changelog has died meanwhile"


def test_adopted_changelog_is_released_when_bases_of_its_state_cover_it_whole(
    steps: Steps,
) -> None:
    steps.register()
    for batch_id in range(4):
        steps.whole_batch(1, batch_id)
    steps.begin(steps.ref(1, 4))
    batch = steps.ref(1, 4)
    wide = replace(steps.changelog(1, 3, 0, 0), key_groups=KeyGroupRange(0, MAX_PARALLELISM))
    file = steps.intend(batch)
    steps.run(lambda c: segments.place_segments(c, steps.job_id, [(file.file_id, 0, wide)]))

    def released() -> Any:
        [(checkpoint,)] = steps.sql(
            "SELECT released_checkpoint FROM cairn.placed_segments WHERE segment_id = :id",
            id=UUID(wide.segment_id),
        )
        return checkpoint

    steps.install(batch, steps.base(batch, 3, (0, 4)))
    assert released() is None, "a half is not covered"
    steps.install(batch, steps.base(batch, 2, (4, 8)), subtask=1)
    steps.install(batch, steps.base(batch, 4, (0, 4)))
    assert released() is None, "a half is covered by an older state"
    steps.install(batch, steps.base(batch, 3, (4, 8)), subtask=1)
    assert released() == steps.begin(batch).checkpoint_id + 1
