"""Carrying out the order to materialize a subtask, and recording how it ended."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

from sqlalchemy import Connection

from cairn.catalog.job.materializations import Materialized, record_end, record_start
from cairn.errors import CairnError, FencedError, MetastoreError, OutcomeUnknownError
from cairn.runtime.executor.local_store import LocalStore, Weight, open_local
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.order import Order
from cairn.runtime.materialization.progress import Progress, progress_of, record_progress
from cairn.runtime.materialization.write import Compute, materialize
from cairn.storage import open_store
from metastore.enums import SegmentKind

_log = logging.getLogger(__name__)


def carry_out(manager: TaskManager, order: Order, compute: Compute = iter) -> None:
    """Materializes a subtask and records the result, here and in the metastore.

    Raises:
        FencedError: a newer run has begun a batch. It materializes, so this is no failure.
    """
    run, began_s = manager.run, time.monotonic()
    about = {"job": run.job, "subtask": order.subtask}
    before, after = progress_of(manager, order.subtask), Progress(done_ms=order.now_ms)
    made, error, materialization_id = None, None, uuid.uuid4()
    try:
        _in_metastore(
            run, order, lambda c: record_start(c, order.batch, order.subtask, materialization_id)
        )
        local = open_local(manager.subtask_directory(order.subtask))
        with local.read() as reader:
            weighed = reader.weight()
            context = SubtaskContext(
                manager=manager,
                store=open_store(run.storage),
                batch=order.batch,
                subtask=order.subtask,
            )
            made = materialize(context, reader, compute=compute)
        _weigh(local, weighed, made)
        facts = {
            "kind": made.kind if made else None,
            "size_bytes": made.size_bytes if made else 0,
            "seconds": round(time.monotonic() - began_s, 3),
        }
        _log.info("subtask materialized", extra=about | facts)
    except FencedError:
        raise
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
    try:
        _in_metastore(run, order, lambda c: record_end(c, materialization_id, made, error))
    except MetastoreError as failed:
        # Only statistics lack it; the orders that wait are not to wait for the next process.
        _log.warning("the end of a materialization is not recorded: %s", failed, extra=about)


def _weigh(local: LocalStore, before: Weight, made: Materialized | None) -> None:
    """Records the bytes that a restore has to read, with those since the snapshot."""
    with local.write() as writer:
        position, now = writer.reader.position(), writer.reader.weight()
        since_bytes = now.change_bytes - before.change_bytes
        if position is None or since_bytes < 0:
            return  # restored meanwhile, so it is known anew
        weight = Weight(before.base_bytes, since_bytes)
        if made is not None and made.kind is SegmentKind.KEYED_INCREMENT:
            weight = Weight(before.base_bytes, made.size_bytes + since_bytes)
        elif made is not None:
            weight = Weight(made.size_bytes, since_bytes)
        writer.move_to(position, weight)


def _in_metastore(run: RunContext, order: Order, work: Callable[[Connection], None]) -> None:
    run.catalog.run(f"record a materialization of subtask {order.subtask} of job {run.job}", work)
