"""Who may write: the newest run that has begun a batch."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, text

from cairn.batch_ref import RunRef

_FACTS = "current_epoch, query_id, next_checkpoint_id, max_parallelism, num_retained, name, job_id"
_LOCK = text(f"SELECT {_FACTS} FROM cairn.lock_job(:job_id, :exclusive)")  # noqa: S608 - fixed
_REQUIRE = text(
    f"SELECT {_FACTS} FROM cairn.require_epoch("  # noqa: S608 - fixed
    ":job_id, :epoch, CAST(:run_id AS uuid), :exclusive, :may_begin)"
)


def lock_job(connection: Connection, job_id: str, *, exclusive: bool) -> Row[*tuple[Any, ...]]:
    """Locks a job until the transaction ends; returns its epoch, query, next id and such facts.

    Beginning a batch takes the exclusive lock, so under either lock no newer run begins. Those who
    wait are served in order, so that executors that share the lock cannot starve maintenance.
    """
    return connection.execute(_LOCK, {"job_id": job_id, "exclusive": exclusive}).one()


def require_epoch(
    connection: Connection, run: RunRef, *, exclusive: bool = False, may_begin: bool = False
) -> Row[*tuple[Any, ...]]:
    """Locks the job like `lock_job` for a run that may write, and returns its facts.

    That is the newest run that has begun a batch; with `may_begin` a newer one, too, which has not
    begun yet. The functions of the batch path ask the same in the database.

    Raises:
        FencedError: a newer run has begun a batch; or this one has not, in this metastore, which
            may know another run under its epoch. It comes from the database, by way of
            `Catalog.run`.
    """
    values = {
        "job_id": run.job_id,
        "epoch": run.epoch,
        "run_id": run.run_id,
        "exclusive": exclusive,
        "may_begin": may_begin,
    }
    return connection.execute(_REQUIRE, values).one()
