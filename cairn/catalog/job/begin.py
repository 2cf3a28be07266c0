"""Beginning a micro-batch: its checkpoint, its parent, and the fencing of older runs.

Lock order everywhere: the job, then the checkpoint's row. What a begin does is in
`metastore/functions/batches.sql`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from cairn.batch_ref import BatchRef
from cairn.catalog.connections import array, call
from cairn.catalog.job.batch_start import BatchStart, Clock, Parent, acks_of
from cairn.catalog.job.group_commits import Committed
from cairn.catalog.job.runs import refuse_second_query
from cairn.catalog.job.segments import lists_at
from cairn.errors import FencedError, RefusedError
from metastore.enums import CheckpointStatus
from metastore.group_commits import SubtaskAck

ADOPTED_BATCH = -1
"""The batch of the checkpoint that a restored job starts from, before any query's batch 0."""

TAKES_ACKS = (CheckpointStatus.IN_PROGRESS, CheckpointStatus.COMPLETED)

_BEGIN = """
    SELECT * FROM cairn.begin_batch(
        %(job_id)s, %(epoch)s, %(run_id)s, %(query_id)s, %(batch_id)s, %(subtasks)s, %(waits)s
    )
"""


class _Begun(NamedTuple):
    """The first columns of `cairn.begin_batch`; those of a group commit follow."""

    refusal: Mapping[str, Any] | None
    checkpoint_id: int
    status: str
    processing_ms: int
    watermark_ms: int
    parent_checkpoint: int | None
    late_watermark_ms: int | None
    parent_parallelism: int
    parent_run_id: str
    before: int | None
    run_before: str | None
    now_ms: int
    created_ms: int
    base_starts: Sequence[int] | None
    bases_made_ms: Sequence[int] | None


def begin_batch(
    connection: Connection,
    batch: BatchRef,
    *,
    subtasks: Sequence[int] | None = None,
    with_lists: bool = False,
) -> BatchStart:
    """Opens the checkpoint of a batch, or finds it open; confirms the parent; fences older runs.

    Every executor begins a batch. The first one locks the job; the others read what it has decided.
    It is one statement for each of them, which may be a transaction of its own. The parent has the
    acks of the group commits that have some of the subtasks; None: of all. With `with_lists` it has
    its operator lists, for two more statements.

    Raises:
        FencedError: a newer run has begun a batch, or has taken this one again; or the metastore
            knows another run under this one's epoch.
        RefusedError: the job belongs to another query, or the parent's state is not whole.
    """
    facts = asdict(batch) | {"subtasks": None if subtasks is None else array(subtasks)}
    rows = call(connection, _BEGIN, facts | {"waits": False})
    # Somebody else had the job's lock, and has not opened the batch.
    rows = rows or call(connection, _BEGIN, facts | {"waits": True})
    if not rows:
        raise FencedError("a newer run began while this batch did", job=batch.job)
    begun = _Begun(*rows[0][: len(_Begun._fields)])
    if begun.refusal is not None:
        raise _refused(connection, batch, begun.refusal)
    if begun.status not in TAKES_ACKS:
        raise FencedError(
            f"batch {batch.batch_id} is {begun.status}; a late attempt of it changes nothing",
            job=batch.job,
            checkpoint=begun.checkpoint_id,
        )
    parent = _parent(begun, rows)
    if parent and with_lists:
        parent = replace(parent, lists=lists_at(connection, batch.job_id, parent.checkpoint_id))
    return BatchStart(
        checkpoint_id=begun.checkpoint_id,
        parent=parent,
        clock=_clock(begun),
        processing_ms=begun.processing_ms,
        watermark_ms=begun.watermark_ms,
        late_watermark_ms=begun.late_watermark_ms or 0,
    )


def _clock(begun: _Begun) -> Clock:
    made_ms = zip(begun.base_starts or (), begun.bases_made_ms or (), strict=True)
    return Clock(now_ms=begun.now_ms, job_created_ms=begun.created_ms, base_made_ms=dict(made_ms))


def _parent(begun: _Begun, rows: Sequence[tuple[Any, ...]]) -> Parent | None:
    parent_id = begun.parent_checkpoint
    if parent_id is None:
        return None
    commits = [Committed(parent_id, *row[len(_Begun._fields) :]) for row in rows]
    return Parent(
        checkpoint_id=parent_id,
        run_id=begun.parent_run_id,
        parent_checkpoint=begun.before,
        parent_run_id=begun.run_before,
        parallelism=begun.parent_parallelism,
        # One that was restored or rebuilt has no group commit.
        acks=acks_of([commit for commit in commits if commit.parallelism is not None]),
    )


def _refused(connection: Connection, batch: BatchRef, found: Mapping[str, Any]) -> RefusedError:
    """Returns the error for what `cairn.open_batch` has found."""
    match found["why"]:
        case "query":
            return refuse_second_query(batch.job, found["query"], batch.query_id)
        case "passed":
            return RefusedError(
                f"Spark begins batch {batch.batch_id}, but batch {found['batch']} of this query "
                "was already committed: its checkpointLocation was moved back or edited, or lacks "
                "batches because of asyncProgressTrackingEnabled. Put it back, or start over with "
                "a new checkpointLocation and a new job name",
                job=batch.job,
            )
        case "no parent":
            return _no_parent(batch, found["batch"])
        case "hole":
            return _hole(connection, batch, found)
        case "dropped" | "changed":
            return _outdated(batch, found)
        case _:
            job_id = found["job"]
            return RefusedError(
                f"the watermark follows job {job_id}, which has not begun batch {batch.batch_id} "
                "of this query: both jobs have to be in one query and use one metastore",
                job=job_id,
            )


def _outdated(batch: BatchRef, found: Mapping[str, Any]) -> RefusedError:
    if found["why"] == "dropped":
        return RefusedError(
            f"the state variables {found['names']} were deleted by another run after this "
            "query's plan was built. Build the plan again: they start empty",
            job=batch.job,
        )
    return RefusedError(
        f"another run changed {found['names']} after this query's plan was built. Build the plan "
        "again",
        job=batch.job,
    )


def _no_parent(batch: BatchRef, passed: int | None) -> RefusedError:
    found = (
        f"Spark begins batch {batch.batch_id}, but the metastore has no checkpoint of batch "
        f"{batch.batch_id - 1}"
    )
    if passed is None:
        return RefusedError(
            f"{found}: the job is new here, or that batch never ran the stateful operator. Use the "
            "metastore that the query ran with, run every batch's plan in foreachBatch, or start "
            "over with a new checkpointLocation",
            job=batch.job,
        )
    return RefusedError(
        f"{found}; the newest is of batch {passed}. If the metastore was rebuilt, or is a backup, "
        f"let Spark run the batches after it again: stop the query, and delete the files above "
        f"{passed} in the checkpointLocation's commits and above {passed + 1} in its offsets. Or "
        "start a new job with restore_from and a new checkpointLocation. If it is neither, run "
        "every batch's plan in foreachBatch",
        job=batch.job,
    )


def _hole(connection: Connection, batch: BatchRef, previous: Mapping[str, Any]) -> RefusedError:
    acked = set(
        connection.scalars(
            select(SubtaskAck.subtask).where(
                SubtaskAck.job_id == batch.job_id,
                SubtaskAck.checkpoint_id == previous["checkpoint"],
            )
        )
    )
    missing = [i for i in range(previous["parallelism"]) if i not in acked]
    return RefusedError(
        f"subtasks {missing} never acknowledged batch {previous['batch']}, so its state is not "
        "whole. Either something downstream (a limit, a take in foreachBatch) stopped before all "
        "partitions ran: run the whole result of the stateful operator in every batch. Or the "
        "metastore lost acknowledgements, as a failover or a backup does: stop the query, delete "
        f"the files from {previous['batch']} on in the checkpointLocation's commits, and start it "
        "again; Spark then runs that batch again",
        job=batch.job,
        checkpoint=previous["checkpoint"],
    )
