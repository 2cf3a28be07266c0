"""Batches whose local disk fails at each of its operations in turn; run as a program.

By an audit hook, which sees every file that is opened, made or removed, and is there for good.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass
from functools import partial
from itertools import count

from sqlalchemy import text

from cairn.errors import StorageError
from tests.runtime.tasks import Task, new_run, read_back, remember, remembered

OPERATIONS = {
    "open",
    "os.chmod",
    "os.listdir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
}


@dataclass
class Disk:
    """What lies below a directory; operation `fails_at` fails, counted from `arm`."""

    directory: str
    fails_at: int = 0
    done: int = 0
    failed: str = ""

    def arm(self, fails_at: int) -> None:
        """Has a later operation fail; 0: none."""
        self.fails_at, self.done, self.failed = fails_at, 0, ""

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Counts an operation, and raises if it is the one that fails."""
        if not self.fails_at or event not in OPERATIONS or isinstance(arguments[0], int):
            return
        path = os.fsdecode(arguments[0])  # type: ignore[arg-type]
        if not path.startswith(self.directory):
            return
        self.done += 1
        if self.done == self.fails_at:
            self.failed = f"{event} {path}"
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def main(url: str, storage: str, local_dir: str) -> None:
    """Prints by kind of batch how many operations it has, after each has failed once."""
    disk = Disk(local_dir)
    sys.addaudithook(disk.audit)
    plan = new_run(url, storage, local_dir, parallelism=1)
    Task(plan, "one", 0, 0, 0, remember(0)).run()
    batch, attempts = 1, count(1)
    for kind in ("plain", "with a base", "first of a run"):
        for fails_at in range(1, 500):
            if kind == "first of a run":
                plan = new_run(url, storage, local_dir, parallelism=1)
            task = partial(
                Task, plan, "one", batch, 0, write=remember(batch), materializes=kind != "plain"
            )
            disk.arm(fails_at)
            try:
                task(task_attempt=next(attempts)).run()
            except StorageError as error:
                if "bytes free" not in str(error):
                    raise
            had, failed = disk.done, disk.failed
            disk.arm(0)
            if failed:
                task(task_attempt=next(attempts)).run()
            batch += 1
            if had < fails_at:
                break
        print(kind, fails_at - 1)
    Task(plan, "one", batch, 0, next(attempts), remember(batch)).run()
    newest = "SELECT max(checkpoint_id) FROM cairn.checkpoints WHERE status = 'CONFIRMED'"
    [checkpoint_id] = plan.catalog.run("reading", lambda c: c.execute(text(newest)).one())
    assert read_back(plan, checkpoint_id) == remembered(batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
