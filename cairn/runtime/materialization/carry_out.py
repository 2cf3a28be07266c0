"""Carrying out orders to materialize subtasks, and recording how they ended."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from sqlalchemy import Connection

from cairn.catalog.job.materializations import Materialized, record_end, record_start
from cairn.errors import (
    CairnError,
    FencedError,
    MetastoreError,
    OutcomeUnknownError,
    ReplacedError,
)
from cairn.runtime.executor.local_record import Weight
from cairn.runtime.executor.local_store import LocalStore
from cairn.runtime.executor.open_stores import open_local
from cairn.runtime.executor.private_files import disk_errors_below
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.order import Order
from cairn.runtime.materialization.progress import (
    Progress,
    count_as_failed,
    progress_of,
    record_progress,
)
from cairn.runtime.materialization.verification import verify_if_due
from cairn.runtime.materialization.write import Compute, materialize, materialize_all
from cairn.storage import ObjectStore, open_store
from metastore.enums import SegmentKind

_ATTEMPTS = 3
"""Where the maintenance replaces meanwhile what a materialization is made from."""

_log = logging.getLogger(__name__)


def carry_out_all(manager: TaskManager, orders: Sequence[Order], compute: Compute = iter) -> None:
    """Materializes several subtasks with one transaction of each kind, and records the results.

    If that fails, each is carried out on its own: so a failure counts where it belongs. One order
    is counted as failed by the caller, several are counted here, when each is alone.

    Raises:
        FencedError: see `carry_out`.
    """
    if len(orders) == 1:
        carry_out(manager, orders[0], compute)
        return
    ids = [uuid.uuid4() for _ in orders]
    try:
        _carry_out_together(manager, orders, ids, compute)
    except FencedError:
        raise
    except CairnError as failed:
        facts = {"job": manager.run.job, "subtasks": [order.subtask for order in orders]}
        _log.warning("materialized one by one, because together: %s", failed, extra=facts)
    else:
        return
    for order, materialization_id in zip(orders, ids, strict=True):
        count_as_failed(manager, order.subtask, progress_of(manager, order.subtask))
        carry_out(manager, order, compute, materialization_id)


def _carry_out_together(
    manager: TaskManager, orders: Sequence[Order], ids: Sequence[uuid.UUID], compute: Compute
) -> None:
    began_s, store = time.monotonic(), open_store(manager.run.storage)

    def start(connection: Connection) -> None:
        for order, materialization_id in zip(orders, ids, strict=True):
            record_start(connection, order.batch, order.subtask, materialization_id)

    _in_metastore(manager.run, orders[0], start)
    with disk_errors_below(manager.job_directory), ExitStack() as held:
        locals_ = [_open(manager, order, held) for order in orders]
        readers = [held.enter_context(local.read()) for local in locals_]
        weighed = [reader.weight() for reader in readers]
        contexts = [
            _context(manager, order, materialization_id, store)
            for order, materialization_id in zip(orders, ids, strict=True)
        ]
        made = materialize_all(list(zip(contexts, readers, strict=True)), compute=compute)
        for one_context, reader, one in zip(contexts, readers, made, strict=True):
            verify_if_due(one_context, reader, one, compute)
    for local, before, one in zip(locals_, weighed, made, strict=True):
        _weigh(local, before, one)
    facts = {
        "job": manager.run.job,
        "subtasks": [order.subtask for order in orders],
        "size_bytes": sum(one.size_bytes for one in made if one),
        "seconds": round(time.monotonic() - began_s, 3),
    }
    _log.info("subtasks materialized together", extra=facts)
    for order in orders:
        record_progress(manager, order.subtask, Progress(done_ms=order.now_ms))

    def end(connection: Connection) -> None:
        for materialization_id, one in zip(ids, made, strict=True):
            record_end(connection, materialization_id, one, None)

    _record_end(manager.run, orders[0], end)


def _context(
    manager: TaskManager, order: Order, materialization_id: uuid.UUID, store: ObjectStore
) -> SubtaskContext:
    return SubtaskContext(
        manager=manager,
        store=store,
        batch=order.batch,
        subtask=order.subtask,
        materialization_id=str(materialization_id),
    )


def carry_out(
    manager: TaskManager,
    order: Order,
    compute: Compute = iter,
    materialization_id: uuid.UUID | None = None,
) -> None:
    """Materializes a subtask and records the result, here and in the metastore.

    Raises:
        FencedError: a newer run has begun a batch. It materializes, so this is no failure.
    """
    run, began_s = manager.run, time.monotonic()
    about = {"job": run.job, "subtask": order.subtask}
    before, after = progress_of(manager, order.subtask), Progress(done_ms=order.now_ms)
    made, error = None, None
    materialization_id = materialization_id or uuid.uuid4()
    try:
        _in_metastore(
            run, order, lambda c: record_start(c, order.batch, order.subtask, materialization_id)
        )
        made = _materialized(manager, order, materialization_id, compute)
        facts = {
            "kind": made.kind if made else None,
            "size_bytes": made.size_bytes if made else 0,
            "seconds": round(time.monotonic() - began_s, 3),
        }
        _log.info("subtask materialized", extra=about | facts)
    except FencedError:
        raise
    except ReplacedError as replaced:
        _log.info("left to a later order, as others materialize it: %s", replaced, extra=about)
        # No failure: it was counted before it began.
        after = Progress(done_ms=before.done_ms, failures=max(0, before.failures - 1))
    except CairnError as failed:
        _log.warning("materialization failed: %s", failed, extra=about)
        error = str(failed)
        # What is not known to have been written is written again, to another file.
        is_final = not failed.retryable and not isinstance(failed, OutcomeUnknownError)
        after = Progress(
            done_ms=before.done_ms, failures=before.failures, error=error, is_final=is_final
        )
    # First here: tasks count failures by this file, and the metastore may be what has failed.
    record_progress(manager, order.subtask, after)
    _record_end(run, order, lambda c: record_end(c, materialization_id, made, error))


def _materialized(
    manager: TaskManager, order: Order, materialization_id: uuid.UUID, compute: Compute
) -> Materialized | None:
    """Materializes a subtask; again, from what is there then, where others were faster."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return _materialize_once(manager, order, materialization_id, compute)
        except ReplacedError as replaced:
            about = {"job": manager.run.job, "subtask": order.subtask}
            _log.info("materialized again, because %s", replaced, extra=about)
    return _materialize_once(manager, order, materialization_id, compute)


def _materialize_once(
    manager: TaskManager, order: Order, materialization_id: uuid.UUID, compute: Compute
) -> Materialized | None:
    with disk_errors_below(manager.job_directory), ExitStack() as held:
        local = _open(manager, order, held)
        reader = held.enter_context(local.read())
        weighed = reader.weight()
        context = _context(manager, order, materialization_id, open_store(manager.run.storage))
        made = materialize(context, reader, compute=compute)
        verify_if_due(context, reader, made, compute)
    _weigh(local, weighed, made)
    return made


def _open(manager: TaskManager, order: Order, held: ExitStack) -> LocalStore:
    """Opens a subtask's local state; notes with the end of `held` that this killed nobody."""
    local = open_local(manager.subtask_directory(order.subtask), reader="materialization")
    held.enter_context(local.watched())
    return local


def _record_end(run: RunContext, order: Order, work: Callable[[Connection], None]) -> None:
    try:
        _in_metastore(run, order, work)
    except MetastoreError as failed:
        # Only statistics lack it; the orders that wait are not to wait for the next process.
        about = {"job": run.job, "subtask": order.subtask}
        _log.warning("the end of a materialization is not recorded: %s", failed, extra=about)


def _weigh(local: LocalStore, before: Weight, made: Materialized | None) -> None:
    """Records the bytes that a restore has to read, with those since the snapshot.

    Bases that the maintenance has made are known from then on, too.
    """
    with local.write() as writer:
        position, now = writer.reader.position(), writer.reader.weight()
        since_bytes = now.change_bytes - before.change_bytes
        if position is None or since_bytes < 0:
            return  # restored meanwhile, so it is known anew
        weight = Weight(before.base_bytes, since_bytes)
        if made is not None and made.kind is SegmentKind.KEYED_INCREMENT:
            weight = Weight(made.base_bytes, made.size_bytes + since_bytes)
        elif made is not None:
            weight = Weight(made.base_bytes, since_bytes)
        writer.move_to(position, weight)


def _in_metastore(run: RunContext, order: Order, work: Callable[[Connection], None]) -> None:
    run.catalog.run(f"record a materialization of subtask {order.subtask} of job {run.job}", work)
