"""A query whose group commits merge files as options say, on real files and without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import text

from cairn.runtime.executor.run_context import RunContext
from cairn.storage.posix import PosixStore
from metastore.enums import CheckpointStatus
from tests.runtime.file_rows import files, objects, rows
from tests.runtime.tasks import Task, new_run, read_back, remember, remembered, run_together

SUBTASKS = 4
ALWAYS_FULL = -1.0


@dataclass
class Stream:
    """A query whose tasks run one after the other on one executor, in this process."""

    url: str
    storage: str
    local_dir: str
    plan: RunContext = field(init=False)
    batches: int = 0
    attempts: int = 0

    def restart(self, parallelism: int = SUBTASKS, **options: object) -> RunContext:
        keys = {f"cairn.file-merging.{name.replace('_', '-')}": v for name, v in options.items()}
        keys["cairn.changelog.dstl.upload.retry-policy"] = "none"  # what fails is to be seen
        self.plan = new_run(
            self.url, self.storage, self.local_dir, parallelism=parallelism, options=keys
        )
        return self.plan

    def let_writes_end(self) -> None:
        """Makes every write intent as old as it takes for no request to be under way."""
        with self.plan.catalog.begin() as connection:
            connection.execute(
                text("UPDATE cairn.physical_files SET created_at = created_at - interval '21 min'")
            )

    def task(self, subtask: int, **changes: Any) -> Task:
        self.attempts += 1
        batch = self.batches
        made = Task(self.plan, "executor", batch, subtask, self.attempts, remember(batch))
        return replace(made, **{"full_from_share": ALWAYS_FULL, **changes})

    def tasks(self, **changes: Any) -> list[Task]:
        return [self.task(subtask, **changes) for subtask in range(self.plan.parallelism)]

    def batch(self, **changes: Any) -> None:
        """Runs a batch in one group commit."""
        run_together(self.tasks(**changes))
        self.batches += 1

    def assert_whole(self, *, may_be_torn: bool = False) -> None:
        """Every checkpoint that is kept reads back as its batch, and every sealed file is there.

        A torn file has bytes after its end, of a write that failed.
        """
        kept = (CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED)
        for checkpoint_id, batch_id, status in rows(
            self.plan, "SELECT checkpoint_id, batch_id, status FROM cairn.checkpoints"
        ):
            if status in kept:
                assert read_back(self.plan, checkpoint_id) == remembered(batch_id + 1)
        stored = objects(self.plan)
        for path, size_bytes, _ in files(self.plan):
            assert stored[path] == size_bytes or (may_be_torn and stored[path] > size_bytes)


def subtasks_by_file(plan: RunContext) -> list[list[int]]:
    return rows(
        plan,
        "SELECT array_agg(DISTINCT subtask ORDER BY subtask) FROM cairn.segments"
        " WHERE status = 'LIVE' GROUP BY file_id ORDER BY 1",
    )


class CountingStore(PosixStore):
    """Notes every request."""

    def __init__(self, storage: str) -> None:
        super().__init__(Path(storage.removeprefix("file://")))
        self.requests: list[str] = []

    def put(self, path: str, chunks: Any) -> None:
        self.requests.append("put")
        super().put(path, chunks)

    def append(self, path: str, offset: int, chunks: Any) -> None:
        self.requests.append("append")
        super().append(path, offset, chunks)
