"""A query whose tasks run one after the other in this process, with manifests and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from sqlalchemy import Connection, text

from cairn.catalog.catalog import Catalog
from cairn.catalog.job.runs import RegisteredRun, Registration, register_run
from cairn.catalog.savepoints.manifest_rows import (
    IntendedManifest,
    describe_checkpoint,
    intend_manifest,
)
from cairn.catalog.savepoints.pins import Pinned
from cairn.layout import manifest_file
from cairn.ownership.take import own_root
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.task.periodic_manifest import write_manifest_if_due
from cairn.savepoints.manifest_files import Origin, read_manifest
from cairn.savepoints.write_manifest import pin
from cairn.settings import Settings
from cairn.storage import ObjectStore, open_store
from metastore.enums import PinKind
from tests.file_retention import DELETE_AT_ONCE_MS
from tests.runtime.tasks import (
    MAX_PARALLELISM,
    QUERY,
    ChangeLists,
    Task,
    Write,
    read_back,
    remember,
)

T = TypeVar("T")
EXECUTOR = "one"


@dataclass
class Query:
    """Batch b appends b to a list in every key group: see `tests.runtime.tasks.remember`."""

    url: str
    storage: str
    local_dir: str
    job: str = "words"
    interval: int | None = 0
    plan: RunContext = field(init=False)
    run: RegisteredRun = field(init=False)
    attempts: int = 0

    def start(self, parallelism: int = 2, **changes: Any) -> Query:
        """Registers a run and makes its plan; the next batch is the first of it."""
        registration = replace(self.registration(parallelism), **changes)
        self.run = self.do(lambda c: register_run(c, registration))
        own_root(self.catalog, self.store, self.run.job_id)
        self.plan = self.plan_of(registration, self.run)
        return self

    def registration(self, parallelism: int = 2) -> Registration:
        return Registration(
            run_id=uuid4(),
            job=self.job,
            storage=self.storage,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            num_retained=2,
            file_retention_ms=DELETE_AT_ONCE_MS,
            keeps_manifest=self.interval is None,
            key_schema={"fields": []},
            states=[],
        )

    def plan_of(self, registration: Registration, run: RegisteredRun) -> RunContext:
        return RunContext(
            job=self.job,
            job_id=run.job_id,
            run_id=str(registration.run_id),
            epoch=run.epoch,
            parallelism=registration.parallelism,
            max_parallelism=run.max_parallelism,
            storage=self.storage,
            catalog=self.catalog,
            settings=Settings(
                num_retained=2,
                persist_delay_ms=0,
                local_dir=self.local_dir,
                manifest_interval=self.interval,
            ),
            tasks=registration.parallelism,
            split_lists=run.split_lists,
            union_lists=run.union_lists,
        )

    def batch(
        self,
        batch_id: int,
        *,
        materializes: Sequence[int] = (),
        write: Write | None = None,
        change_lists: ChangeLists | None = None,
    ) -> int:
        """Runs a whole batch; returns its checkpoint."""
        for subtask in range(self.plan.parallelism):
            task = self.task(batch_id, subtask, subtask in materializes, write)
            replace(task, change_lists=change_lists).run()
        manager = TaskManager(self.plan, EXECUTOR)
        begun = manager.begin(self.plan.batch(QUERY, batch_id))
        if self.interval != 0:
            write_manifest_if_due(manager, self.store, begun)
        return begun.checkpoint_id

    def task(
        self, batch_id: int, subtask: int, materializes: bool = False, write: Write | None = None
    ) -> Task:
        self.attempts += 1
        made = write or remember(batch_id)
        return Task(
            self.plan, EXECUTOR, batch_id, subtask, self.attempts, made, materializes=materializes
        )

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.url)

    @property
    def store(self) -> ObjectStore:
        return open_store(self.storage)

    @property
    def root(self) -> Path:
        """The job's directory in storage."""
        return Path(unquote(urlsplit(self.storage).path)) / self.plan.job_id

    def savepoint(self, checkpoint_id: int | None = None, name: str | None = None) -> Pinned:
        return pin(self.catalog, self.job, checkpoint_id, kind=PinKind.SAVEPOINT, name=name)

    def manifest_url(self, checkpoint_id: int) -> str:
        return f"{self.storage}/{manifest_file(self.plan.job_id, checkpoint_id)}"

    def origin(self, checkpoint_id: int) -> Origin:
        return read_manifest(self.manifest_url(checkpoint_id))

    def state(self, checkpoint_id: int) -> Any:
        return read_back(self.plan, checkpoint_id)

    def age_intents(self) -> None:
        """Makes write intents so old that their objects cannot appear any more."""
        self.sql(
            "UPDATE cairn.physical_files SET created_at = now() - interval '1 hour'"
            " WHERE job_id = :job AND status = 'WRITING'"
        )

    def do(self, work: Callable[[Connection], T]) -> T:
        return self.catalog.run("testing", work)

    def sql(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement, in which `:job` is the job's id."""

        def work(connection: Connection) -> list[tuple[Any, ...]]:
            bound = {"job": self.plan.job_id, **values}
            needed = {name: value for name, value in bound.items() if f":{name}" in statement}
            result = connection.execute(text(statement), needed)
            return [tuple(row) for row in result] if result.returns_rows else []

        return self.do(work)


def intend(connection: Connection, job_id: str, checkpoint_id: int) -> IntendedManifest:
    """Records the intent of a checkpoint's manifest, as it is now."""
    return intend_manifest(connection, describe_checkpoint(connection, job_id, checkpoint_id))
