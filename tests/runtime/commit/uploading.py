"""An executor in its first batch, which uploads files, for tests of single uploads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import text

from cairn.catalog.job.files import Uploaded
from cairn.errors import StorageError
from cairn.layout import generation_of, task_manager_file
from cairn.runtime.commit.uploads import Target, upload
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.storage import ObjectStore
from metastore.enums import Scope
from tests.runtime.commit.one_upload import FaultyStore
from tests.runtime.tasks import QUERY, new_run

EXECUTOR = "executor"
LOST = StorageError("the connection was lost")


@dataclass
class Uploading:
    """An executor in its first batch, which uploads."""

    plan: RunContext
    store: ObjectStore

    def __post_init__(self) -> None:
        self.batch = self.plan.batch(QUERY, 0)
        self.manager = TaskManager(self.plan, EXECUTOR)
        self.manager.begin(self.batch)

    def upload(self, size_bytes: int = 1, *, is_changelog: bool = True) -> Uploaded:
        path_of = partial(task_manager_file, self.plan.job_id, self.manager.tm_id)
        target = Target(
            batch=self.batch, scope=Scope.TASK_MANAGER, path_of=path_of, is_changelog=is_changelog
        )
        return upload(self.manager, self.store, target, [b"x" * size_bytes])

    def rows(self, statement: str) -> list[Any]:
        with self.plan.catalog.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    def objects(self) -> set[str]:
        found = {found.path for found in self.store.list(f"{self.plan.job_id}/")}
        return {path for path in found if generation_of(path) is None}

    def let_writes_end(self) -> None:
        """Makes every write intent as old as it takes for no request to be under way."""
        self.rows("UPDATE cairn.physical_files SET created_at = created_at - interval '20 min'")


def maker(metastore_url: str, tmp_storage: str, local_dir: Path) -> Callable[..., Uploading]:
    """Returns what makes an executor from settings and the store that it writes to."""

    def new(store: ObjectStore | None = None, **settings: Any) -> Uploading:
        storage = store.url if store else tmp_storage
        plan = new_run(metastore_url, storage, str(local_dir))
        plan = replace(plan, settings=replace(plan.settings, **settings))
        return Uploading(plan, store or FaultyStore(storage))

    return new


def faulty(uploading: Uploading) -> FaultyStore:
    assert isinstance(uploading.store, FaultyStore)
    return uploading.store


def until(reached: Callable[[], bool], most_s: float = 10) -> None:
    give_up = time.monotonic() + most_s
    while not reached():
        assert time.monotonic() < give_up, "it does not happen"
        time.sleep(0.002)
