"""A process that is killed before the nth step of its work, and says which step that was.

A step is what others can see the effect of: the commit of a transaction that has written, the
moment after it, a change in the storage's directory, a request that writes to S3, a file that gets
its name in the executor's directory. They are found from outside, by the events of SQLAlchemy and
of Python's audit hooks; no code of Cairn's is replaced.

On S3 only the steps count that are others than in a directory: a request, and what follows it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine, Pool, event

from cairn.catalog.catalog import Catalog
from cairn.errors import CairnError
from cairn.maintenance.actions import apply_plan
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.order import placed
from cairn.runtime.materialization.serve import take
from cairn.runtime.task.periodic_manifest import write_manifest_if_due
from cairn.savepoints.write_manifest import pin
from cairn.storage import open_store
from metastore.enums import PinKind
from tests.runtime.one_task import die
from tests.runtime.sent import watch
from tests.runtime.tasks import QUERY, Task, plan_of, remember, run_together

EXECUTOR = "executor"

_TABLE = re.compile(r"(?:INSERT INTO|UPDATE) cairn\.(\w+)")
_BY_CALL = {
    "cairn.intend_files(": ["physical_files"],
    "cairn.begin_batch(": ["checkpoints"],
    "cairn.acknowledge(": ["physical_files", "group_commits"],
    "cairn.take_lease(": ["maintenance_runs"],
    "cairn.finish_maintenance_run(": ["maintenance_runs"],
}
"""The tables that a function of the batch path writes."""
_CHANGES = {"os.link": 1, "os.rename": 1, "os.mkdir": 0, "os.remove": 0}
"""Audit events that change a directory, with the place of the path that they make or remove."""
_WRITING = os.O_WRONLY | os.O_RDWR
_METHOD = re.compile(rb"(PUT|POST|DELETE|GET|HEAD) ")


@dataclass
class Steps:
    """Counts steps down, and ends the process before the one at which none is left."""

    pipe: Pipe
    left: int
    is_on_s3: bool
    follows_request: bool = False

    def before(self, name: str) -> None:
        is_request = name.startswith("before the ")
        is_counted = is_request or self.follows_request or not self.is_on_s3
        self.follows_request = is_request
        self.left -= is_counted
        if is_counted and self.left == 0:
            self.pipe.send(name)
            die()


def watch_transactions(steps: Steps) -> None:
    """Makes the commit of each transaction that writes a step, and the moment after it."""
    written: dict[int, list[str]] = {}
    committed: dict[int, str] = {}

    def note(session: object, statement: str, is_transaction: bool) -> None:
        tables = written.setdefault(id(session), [])
        names = [name for call, names in _BY_CALL.items() if call in statement for name in names]
        names += _TABLE.findall(statement)
        tables += [table for table in names if table not in tables]
        if is_transaction:
            before_commit(id(session))

    def before(connection: Connection) -> None:
        before_commit(id(connection.connection.dbapi_connection))

    def before_commit(session: int) -> None:
        if tables := written.pop(session, []):
            committed[session] = f"COMMIT of {', '.join(tables)}"
            steps.before(f"before {committed[session]}")

    def after(session: object, *_: Any) -> None:
        written.pop(id(session), None)
        if id(session) in committed:
            steps.before(f"after {committed.pop(id(session))}")

    watch(note)
    event.listen(Engine, "commit", before)
    event.listen(Pool, "checkin", after)


def watch_files(steps: Steps, storage: str, local: str) -> None:
    """Makes each change in the storage's directory a step, in the local one renames and orders."""

    def is_in(root: str, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(f"{root}/")

    def is_order(path: str | os.PathLike[str]) -> bool:
        return Path(path).parent.name == "orders"

    def look(name: str, given: tuple[Any, ...]) -> None:
        if name == "open" and is_in(storage, given[0]) and given[2] & _WRITING:
            steps.before("before a file in the storage is opened")
        elif name in _CHANGES and is_in(storage, given[_CHANGES[name]]):
            steps.before(f"before {name[3:]} in the storage")
        elif name == "os.remove" and is_in(local, given[0]) and is_order(given[0]):
            steps.before("before an order is removed")
        elif name == "os.rename" and is_in(local, given[1]):
            steps.before(f"before rename into {Path(given[1]).parent.name}")

    sys.addaudithook(look)


def watch_requests(steps: Steps) -> None:
    """Makes the head and the body of each request that writes a step."""
    methods: dict[int, str] = {}

    def look(name: str, given: tuple[Any, ...]) -> None:
        if name != "http.client.send":
            return
        connection, data = given
        head = _METHOD.match(data) if isinstance(data, bytes) else None
        if head:
            methods[id(connection)] = head[1].decode()
        method = methods[id(connection)]
        if method not in ("GET", "HEAD"):
            steps.before(f"before the {'head' if head else 'body'} of a {method}")

    sys.addaudithook(look)


def run(
    pipe: Pipe,
    number: int,
    environment: Mapping[str, str],
    roots: tuple[str, str],
    work: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    """Does the work up to its nth step and says which that was, or "" if it has fewer."""
    os.environ.update(environment)
    steps = Steps(pipe, number, is_on_s3=roots[0].startswith("s3:"))
    watch_transactions(steps)
    watch_files(steps, *roots)
    watch_requests(steps)
    try:
        work(*arguments)
    except CairnError as error:
        pipe.send(f"{type(error).__name__}: {error}")
    else:
        pipe.send("")


def commit_a_batch(facts: dict[str, Any], batch_id: int, task_attempt: int) -> None:
    """Runs all subtasks of a batch in one group commit."""
    plan, write = plan_of(facts), remember(batch_id)
    subtasks = range(plan.parallelism)
    run_together([Task(plan, EXECUTOR, batch_id, each, task_attempt, write) for each in subtasks])


def materialize(facts: dict[str, Any]) -> None:
    """Does what the executor's materializing process does with the orders that are placed."""
    manager = TaskManager(plan_of(facts), EXECUTOR)
    take(manager, placed(manager), lambda _is_patient: nullcontext(iter))


def fold(metastore_url: str, run_id: str) -> None:
    """Applies a stored plan of a materialization by the maintenance."""
    os.environ["CAIRN_STORAGES"] = "file:/// s3://bench"
    apply_plan(Catalog(metastore_url), UUID(run_id))


def savepoint(metastore_url: str, job: str) -> None:
    """Pins the newest confirmed checkpoint and writes its manifest."""
    pin(Catalog(metastore_url), job, None, kind=PinKind.SAVEPOINT)


def interval_manifest(facts: dict[str, Any], batch_id: int) -> None:
    """Writes the manifest that is due in a batch."""
    plan = plan_of(facts)
    manager = TaskManager(plan, EXECUTOR)
    start = manager.begin(plan.batch(QUERY, batch_id))
    write_manifest_if_due(manager, open_store(plan.storage), start)
