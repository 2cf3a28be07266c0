"""The whole protocol without Spark, at random, against a plain dict of the state per batch.

The model plays the driver: it starts a batch's subtasks in any order and place, loses them at any
step, starts them again, lets zombies go on later, commits or replays batches, restarts with another
parallelism and another way of merging files. After every step each checkpoint reads back as the
model's state of its batch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar
from uuid import uuid4

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from cairn.errors import FencedError
from cairn.keygroups import KeyGroupRange
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime import local_store
from cairn.runtime.executor import TaskManager
from cairn.runtime.run_plan import RunPlan
from cairn.state.entries import entry_prefix
from cairn.state.view import Overlay
from cairn.storage.posix import PosixStore
from metastore.engine import open_engine
from metastore.models import CheckpointStatus
from tests.runtime.tasks import (
    EVERYTHING,
    MAX_PARALLELISM,
    Task,
    Write,
    new_run,
    on_host,
    read_back,
    remember,
    remembered,
    subtask_range,
)

MERGING: dict[str, dict[str, object]] = {
    "within": {},
    "across": {"cairn.file-merging.across-checkpoint-boundary": True},
    "across, small": {
        "cairn.file-merging.across-checkpoint-boundary": True,
        "cairn.file-merging.max-file-size": "12 kb",
        "cairn.file-merging.max-subtasks-per-file": 2,
        "cairn.file-merging.pool-blocking": True,
    },
    "off": {"cairn.file-merging.enabled": False},
}
merging = st.sampled_from(sorted(MERGING))
READABLE = (CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED)
executors = st.sampled_from([("one", "a"), ("two", "a"), ("three", "b")])
"""Executors by name and host: the first two share local state."""


def signature(group: int, attempt: int) -> bytes:
    """Returns the entry that an attempt leaves in a key group, and no other attempt does."""
    return entry_prefix(group, 3, b"attempts") + b"%d" % attempt


def signed(write: Write, attempt: int) -> Write:
    """Returns the same changes with the attempt's signature."""

    def write_and_sign(overlay: Overlay, groups: KeyGroupRange) -> None:
        write(overlay, groups)
        for group in range(groups.start, groups.end):
            overlay.put(signature(group, attempt), b"")

    return write_and_sign


class Protocol(RuleBasedStateMachine):
    """Spark's driver, its executors, and a maintenance job, one step at a time."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(mkdtemp(prefix="cairn-protocol-"))
        (self.root / "storage").mkdir()
        self.job = f"job-{uuid4().hex[:8]}"
        self.hosts = {"a": 0, "b": 0}
        self.next_batch = 0
        self.attempts = 0
        self.zombies: list[tuple[int, Iterator[str]]] = []
        self.done: set[int] = set()
        self.tears = False
        """Whether files may have bytes after their end, of writers that were refused."""

    @initialize(parallelism=st.integers(1, 3), way=merging)
    def start(self, parallelism: int, way: str) -> None:
        self.restart(parallelism, way)

    @rule(
        parallelism=st.sampled_from([1, 2, 3, 4]),
        executor=executors,
        acknowledged=st.integers(0, 3),
        way=merging,
    )
    def abandon_the_batch_and_restart(
        self, parallelism: int, executor: tuple[str, str], acknowledged: int, way: str
    ) -> None:
        """Some subtasks, or all, have acknowledged a batch that Spark will run again."""
        for subtask in range(min(acknowledged, self.plan.parallelism)):
            self.task(subtask, executor, materializes=False).run()
        self.restart(parallelism, way)

    def restart(self, parallelism: int, way: str) -> None:
        self.plan = new_run(
            self.url,
            (self.root / "storage").as_uri(),
            "",
            job=self.job,
            parallelism=parallelism,
            options=MERGING[way],
        )
        self.tears |= way.startswith("across")
        self.done = set()

    @rule()
    def run_the_plan_again(self) -> None:
        """A sink with two actions, or the same plan started once more."""
        self.done = set()

    @rule(executor=executors, materializes=st.booleans(), which=st.integers(0, 3))
    def run_a_subtask(self, executor: tuple[str, str], materializes: bool, which: int) -> None:
        subtask = which % self.plan.parallelism
        self.task(subtask, executor, materializes).run()
        self.done.add(subtask)

    @rule(executor=executors, materializes=st.booleans(), batches=st.integers(1, 3))
    def run_what_is_left_and_commit(
        self, executor: tuple[str, str], materializes: bool, batches: int
    ) -> None:
        for _ in range(batches):
            for subtask in sorted(set(range(self.plan.parallelism)) - self.done):
                self.task(subtask, executor, materializes).run()
            self.next_batch += 1
            self.done = set()

    @rule(
        executor=executors,
        materializes=st.booleans(),
        which=st.integers(0, 3),
        steps=st.integers(1, 4),
        is_dead=st.booleans(),
    )
    def lose_a_task(
        self,
        executor: tuple[str, str],
        materializes: bool,
        which: int,
        steps: int,
        is_dead: bool,
    ) -> None:
        """A task that Spark gave up stops somewhere: killed, or to go on as a zombie."""
        subtask = which % self.plan.parallelism
        task = self.task(subtask, executor, materializes)
        going = task.steps()
        for _ in range(steps):
            next(going, None)
        if not is_dead:
            self.zombies.append((task.task_attempt, going))

    @precondition(lambda self: self.zombies)
    @rule(steps=st.integers(1, 5), which=st.integers(0, 10))
    def let_a_zombie_go_on(self, steps: int, which: int) -> None:
        number = which % len(self.zombies)
        attempt, going = self.zombies[number]
        try:
            for _ in range(steps):
                if next(going, "end") == "acknowledged":
                    self.assert_recorded(attempt)
        except FencedError:
            del self.zombies[number]

    @rule(host=st.sampled_from(["a", "b"]))
    def lose_a_host(self, host: str) -> None:
        """Its local state and spools are gone."""
        self.hosts[host] += 1

    @rule(executor=executors)
    def lose_a_spool(self, executor: tuple[str, str]) -> None:
        """What an executor keeps of batches is gone, as after its restart."""
        name, host = executor
        with suppress(FileNotFoundError):
            shutil.rmtree(TaskManager(self.on(host), name).directory)

    @rule(an_hour_later=st.booleans())
    def clean(self, an_hour_later: bool) -> None:
        if an_hour_later:
            statement = (
                "UPDATE cairn.physical_files SET created_at = created_at - interval '1 hour'"
                " WHERE job_id = :job"
            )
            with open_engine(self.url).begin() as connection:
                connection.execute(text(statement), {"job": self.plan.job_id})
        cleanup_job(self.url, self.job)

    def on(self, host: str) -> RunPlan:
        return on_host(self.plan, str(self.root / f"host-{host}-{self.hosts[host]}"))

    def task(self, subtask: int, executor: tuple[str, str], materializes: bool) -> Task:
        self.attempts += 1
        name, host = executor
        batch_id = self.next_batch
        write = signed(remember(batch_id), self.attempts)
        made = Task(self.on(host), name, batch_id, subtask, self.attempts, write)
        return replace(made, materializes=materializes)

    def expected(self, checkpoint_id: int, groups: KeyGroupRange) -> dict[bytes, bytes]:
        """Returns the state after the checkpoint's batch, signed by each winning attempt."""
        state: dict[bytes, bytes] = {}
        attempts = self.rows(
            "WITH RECURSIVE lineage AS ("
            "  SELECT job_id, checkpoint_id, parent_checkpoint, parallelism, batch_id"
            "  FROM cairn.checkpoints WHERE job_id = :job AND checkpoint_id = :checkpoint"
            "  UNION ALL SELECT c.job_id, c.checkpoint_id, c.parent_checkpoint, c.parallelism,"
            "  c.batch_id FROM cairn.checkpoints c JOIN lineage l"
            "  ON c.job_id = l.job_id AND c.checkpoint_id = l.parent_checkpoint)"
            " SELECT batch_id, parallelism, subtask, task_attempt"
            " FROM lineage JOIN cairn.subtask_acks USING (job_id, checkpoint_id)",
            checkpoint=checkpoint_id,
        )
        for _, parallelism, subtask, attempt in attempts:
            for group in range(MAX_PARALLELISM):
                if group in groups and group in subtask_range(subtask, parallelism):
                    state[signature(group, attempt)] = b""
        batches = len({batch_id for batch_id, *_ in attempts})
        assert {batch_id for batch_id, *_ in attempts} == set(range(batches))
        return {**state, **remembered(batches, groups)}

    def rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        bound = {"job": self.plan.job_id, **values}
        with open_engine(self.url).connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement), bound)]

    def assert_recorded(self, task_attempt: int) -> None:
        """A task that was told it is acknowledged is, or a later attempt of it."""
        assert self.rows(
            "SELECT 1 FROM cairn.subtask_acks WHERE job_id = :job AND task_attempt >= :attempt",
            attempt=task_attempt,
        )

    @invariant()
    def every_retained_checkpoint_reads_back_as_its_batch(self) -> None:
        found = self.rows(
            "SELECT checkpoint_id, batch_id, status FROM cairn.checkpoints WHERE job_id = :job"
        )
        for checkpoint_id, _, status in found:
            if status in READABLE:
                assert read_back(self.plan, checkpoint_id) == self.expected(
                    checkpoint_id, EVERYTHING
                )
        confirmed = [batch_id for _, batch_id, status in found if status == "CONFIRMED"]
        assert len(confirmed) == len(set(confirmed))
        assert max(confirmed, default=-1) < self.next_batch

    @invariant()
    def every_acknowledged_subtask_reads_back_as_its_batch(self) -> None:
        for checkpoint_id, subtask, parallelism in self.rows(
            "SELECT checkpoint_id, subtask, parallelism FROM cairn.subtask_acks"
            " JOIN cairn.checkpoints USING (job_id, checkpoint_id)"
            " WHERE job_id = :job AND status = 'IN_PROGRESS'"
        ):
            groups = subtask_range(subtask, parallelism)
            state = read_back(self.plan, checkpoint_id, groups)
            assert state == self.expected(checkpoint_id, groups)

    @invariant()
    def every_sealed_file_exists_whole_and_every_object_is_known(self) -> None:
        store = PosixStore(self.root / "storage")
        objects = {found.path: found.size_bytes for found in store.list(f"{self.plan.job_id}/")}
        files = self.rows(
            "SELECT path, status, size_bytes FROM cairn.physical_files WHERE job_id = :job"
        )
        sealed = {path: size_bytes for path, status, size_bytes in files if status == "SEALED"}
        assert sealed.keys() <= objects.keys()
        longer = {path for path, size_bytes in sealed.items() if objects[path] > size_bytes}
        assert not longer or self.tears
        assert all(objects[path] >= size_bytes for path, size_bytes in sealed.items())
        assert objects.keys() <= {path for path, status, _ in files if status != "DELETED"}

    @invariant()
    def every_segment_lies_within_its_file_and_none_overlap(self) -> None:
        assert not self.rows(
            "SELECT s.segment_id FROM cairn.segments s JOIN cairn.physical_files f USING (file_id)"
            " LEFT JOIN cairn.segments o ON o.file_id = s.file_id AND o.segment_id <> s.segment_id"
            " AND o.offset_bytes < s.offset_bytes + s.size_bytes"
            " AND s.offset_bytes < o.offset_bytes + o.size_bytes"
            " WHERE f.job_id = :job AND"
            " (s.offset_bytes + s.size_bytes > f.size_bytes OR o.segment_id IS NOT NULL)"
        )

    @invariant()
    def directories_are_claimed_by_the_run_that_writes_to_them_and_by_no_older_one(self) -> None:
        assert not self.rows(
            "SELECT d.path FROM cairn.directories d JOIN cairn.jobs j USING (job_id)"
            " JOIN cairn.runs r ON r.job_id = j.job_id AND r.epoch = j.current_epoch"
            " WHERE j.job_id = :job AND d.status = 'CLAIMED' AND d.epoch < r.epoch"
            " AND d.parallelism IS DISTINCT FROM r.parallelism"
        )
        assert not self.rows(
            "SELECT f.path FROM cairn.physical_files f JOIN cairn.jobs j USING (job_id)"
            " LEFT JOIN cairn.directories d ON d.job_id = f.job_id"
            " AND starts_with(f.path, d.path || '/')"
            " WHERE f.job_id = :job AND f.epoch = j.current_epoch"
            " AND f.path NOT LIKE '%/exclusive/%' AND d.status IS DISTINCT FROM 'CLAIMED'"
        )

    @invariant()
    def live_bytes_are_exact(self) -> None:
        assert not self.rows(
            "SELECT path FROM cairn.physical_files f LEFT JOIN cairn.segments s"
            " ON s.file_id = f.file_id AND s.status = 'LIVE' WHERE f.job_id = :job"
            " GROUP BY f.file_id HAVING coalesce(sum(s.size_bytes), 0) <> f.live_bytes"
            " OR count(s.segment_id) <> f.live_segments"
        )

    def teardown(self) -> None:
        self.zombies.clear()
        local_store._open.clear()
        shutil.rmtree(self.root)


def test_every_checkpoint_holds_its_batch_whatever_fails_and_whoever_comes_back(
    shared_metastore_url: str,
) -> None:
    class Here(Protocol):
        url = shared_metastore_url

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=16,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # Shrinking runs it hundreds of times; the steps that failed are printed anyway.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
