"""The whole protocol without Spark, at random, against a plain dict of the state per batch.

The model plays the driver: it starts a batch's subtasks in any order and place, loses them at any
step, starts them again, lets zombies go on later, commits or replays batches, restarts with another
parallelism and another way of merging files, and restores a savepoint as another job. Subtasks
materialize, whole or as increments; writes fail, landed or not; connections to the metastore break,
with the transaction committed or not. After every step each checkpoint reads back as the model's
state of its batch: see `tests.runtime.protocol_checks`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from sqlalchemy import text

from cairn.catalog.catalog import Catalog
from cairn.errors import FencedError, StorageError
from cairn.layout import manifest_file
from cairn.maintenance.cleanup import cleanup_job
from cairn.manifest import Manifest
from cairn.runtime.executor import open_stores
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.savepoints.manifest_files import read_manifest
from cairn.savepoints.start_from_manifest import restore
from cairn.savepoints.write_manifest import pin
from cairn.storage import open_store
from metastore.enums import PinKind
from tests.runtime.faults import FailingStore, losing_a_connection
from tests.runtime.protocol_checks import Checked, History, signed
from tests.runtime.tasks import Task, new_run, on_host, remember

ACROSS = "cairn.file-merging.across-checkpoint-boundary"
MERGING: dict[str, dict[str, object]] = {
    "within": {},
    "across": {ACROSS: True},
    "across, small": {
        ACROSS: True,
        "cairn.file-merging.max-file-size": "12 kb",
        "cairn.file-merging.max-subtasks-per-file": 2,
        "cairn.file-merging.pool-blocking": True,
    },
    "off": {"cairn.file-merging.enabled": False},
}
merging = st.sampled_from(sorted(MERGING))
executors = st.sampled_from([("one", "a"), ("two", "a"), ("three", "b")])
"""Executors by name and host: the first two share local state."""


class Protocol(Checked):
    """Spark's driver, its executors, and a maintenance job, one step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(mkdtemp(prefix="cairn-protocol-"))
        (self.root / "storage").mkdir()
        self.storage = (self.root / "storage").as_uri()
        self.job = f"job-{uuid4().hex[:8]}"
        self.hosts = {"a": 0, "b": 0}
        self.next_batch = 0
        self.attempts = 0
        self.zombies: list[tuple[int, Iterator[str]]] = []
        self.done: set[int] = set()
        self.tears = False
        self.origin = History()
        self.savepoints = {}

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

    def restart(self, parallelism: int, way: str, origin: Manifest | None = None) -> None:
        self.plan = new_run(
            self.url,
            self.storage,
            "",
            job=self.job,
            parallelism=parallelism,
            options=MERGING[way],
            origin=origin,
        )
        self.tears |= ACROSS in MERGING[way]
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

    @rule(
        executor=executors,
        materializes=st.booleans(),
        which=st.integers(0, 3),
        lands=st.booleans(),
        retries=st.booleans(),
    )
    def fail_a_write(
        self,
        executor: tuple[str, str],
        materializes: bool,
        which: int,
        lands: bool,
        retries: bool,
    ) -> None:
        """The store fails a task's first write, which is sent again or fails the task."""
        subtask = which % self.plan.parallelism
        task = self.task(subtask, executor, materializes)
        store = FailingStore(open_store(self.storage), lands=lands)
        policy = replace(
            task.plan.settings,
            upload_retry_policy="fixed" if retries else "none",
            upload_next_attempt_delay_ms=1,
        )
        try:
            replace(task, plan=replace(task.plan, settings=policy), store=store).run()
        except StorageError:
            pass
        else:
            assert retries
            self.assert_recorded(task.task_attempt)
            self.done.add(subtask)
        assert store.failed

    @rule(
        executor=executors,
        materializes=st.booleans(),
        which=st.integers(0, 3),
        transaction=st.integers(1, 6),
        commits=st.booleans(),
    )
    def lose_the_metastores_answer(
        self,
        executor: tuple[str, str],
        materializes: bool,
        which: int,
        transaction: int,
        commits: bool,
    ) -> None:
        """A connection breaks as a transaction commits; the task does it again and goes on."""
        subtask = which % self.plan.parallelism
        with losing_a_connection(transaction, commits=commits):
            self.task(subtask, executor, materializes).run()
        self.done.add(subtask)

    @precondition(lambda self: len(self.savepoints) < 2)
    @rule()
    def take_a_savepoint(self) -> None:
        self.savepoint()

    def savepoint(self) -> None:
        """Takes one of the newest checkpoint that Spark has committed, if there is one."""
        if self.rows("SELECT FROM cairn.checkpoints WHERE job_id = :job AND status = 'CONFIRMED'"):
            pinned = pin(Catalog(self.url), self.job, None, kind=PinKind.SAVEPOINT)
            path = manifest_file(self.plan.job_id, pinned.checkpoint_id)
            self.savepoints[f"{self.storage}/{path}"] = self.history(pinned.checkpoint_id)

    @rule(which=st.integers(0, 1), parallelism=st.sampled_from([1, 2, 3, 4]), way=merging)
    def restore_a_savepoint(self, which: int, parallelism: int, way: str) -> None:
        """The query starts again as another job; what runs of the one before is killed."""
        if not self.savepoints:
            self.savepoint()
        if not self.savepoints:
            return
        url, history = sorted(self.savepoints.items())[which % len(self.savepoints)]
        found = read_manifest(url)
        self.job = f"job-{uuid4().hex[:8]}"
        self.next_batch = 0
        self.zombies.clear()
        self.tears = False
        self.origin = history
        self.restart(parallelism, way, found.manifest)
        restore(
            Catalog(self.url),
            found,
            open_store(self.storage),
            run=self.plan.ref,
        )

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
            with Catalog(self.url).begin() as connection:
                connection.execute(text(statement), {"job": self.plan.job_id})
        cleanup_job(Catalog(self.url), self.job)

    def on(self, host: str) -> RunContext:
        return on_host(self.plan, str(self.root / f"host-{host}-{self.hosts[host]}"))

    def task(self, subtask: int, executor: tuple[str, str], materializes: bool) -> Task:
        self.attempts += 1
        name, host = executor
        batch_id = self.next_batch
        write = signed(remember(self.origin.batches + batch_id), self.attempts)
        made = Task(self.on(host), name, batch_id, subtask, self.attempts, write)
        return replace(made, materializes=materializes)

    def teardown(self) -> None:
        self.zombies.clear()
        open_stores.close_all()
        shutil.rmtree(self.root)


@pytest.mark.slow
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
