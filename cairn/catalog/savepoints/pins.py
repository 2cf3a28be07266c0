"""Pinning a checkpoint, so that no cleanup subsumes it, and taking the pin away again.

Each function is the body of one transaction. Lock order: the job's row, then the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, DateTime, Row, func, select, update
from sqlalchemy.dialects.postgresql import insert

from cairn.catalog.job.fencing import lock_job
from cairn.catalog.jobs import find_job
from cairn.errors import BadInputError, RefusedError
from metastore.enums import CheckpointStatus, PinKind
from metastore.models import Checkpoint, Pin


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A pin and its checkpoint; `is_new` is False if the checkpoint was pinned so before."""

    pin_id: UUID
    job_id: str
    storage: str
    checkpoint_id: int
    query_id: str
    batch_id: int
    kind: PinKind
    name: str | None
    expires_at: datetime | None
    is_new: bool


def pin_checkpoint(
    connection: Connection,
    job_name: str,
    checkpoint_id: int | None,
    *,
    pin_id: UUID,
    kind: PinKind,
    name: str | None,
    lasts_ms: int | None = None,
    dry_run: bool = False,
) -> Pinned:
    """Pins a confirmed checkpoint, the newest where no id is given.

    One that has an open pin of that kind and name gets no other, but its end is that of this call:
    `lasts_ms` from now by the database's clock; None: never.

    Raises:
        BadInputError: there is no such job.
        RefusedError: the checkpoint is not CONFIRMED, or none is yet.
    """
    # Against a cleanup's plan, which decides under the same lock.
    job = find_job(connection, job_name, locked=not dry_run)
    checkpoint = _chosen(connection, job, checkpoint_id)
    known = connection.scalar(
        select(Pin.pin_id).where(
            *_open(job.job_id),
            Pin.checkpoint_id == checkpoint.checkpoint_id,
            Pin.kind == kind,
            Pin.name.is_not_distinct_from(name),
        )
    )
    pinned = Pinned(
        pin_id=known or pin_id,
        job_id=job.job_id,
        storage=job.storage,
        checkpoint_id=checkpoint.checkpoint_id,
        query_id=checkpoint.query_id,
        batch_id=checkpoint.batch_id,
        kind=kind,
        name=name,
        expires_at=_expiry(connection, lasts_ms),
        is_new=known in (None, pin_id),
    )
    if not dry_run:
        _save(connection, pinned)
    return pinned


def _save(connection: Connection, pinned: Pinned) -> None:
    """Adds a pin; of one that there is, changes when it expires."""
    made = insert(Pin).values(
        pin_id=pinned.pin_id,
        job_id=pinned.job_id,
        checkpoint_id=pinned.checkpoint_id,
        kind=pinned.kind,
        name=pinned.name,
        expires_at=pinned.expires_at,
    )
    connection.execute(
        made.on_conflict_do_update(
            index_elements=[Pin.pin_id], set_={"expires_at": pinned.expires_at}
        )
    )


def open_pins(
    connection: Connection, job_name: str, checkpoint_id: int | None, name: str | None
) -> list[dict[str, Any]]:
    """Returns the open pins of a checkpoint, of a name, or of both, oldest checkpoint first.

    Raises:
        BadInputError: there is no such job, or no such pin; says which there are.
    """
    job = find_job(connection, job_name)
    chosen = [*_open(job.job_id)]
    if checkpoint_id is not None:
        chosen.append(Pin.checkpoint_id == checkpoint_id)
    if name is not None:
        chosen.append(Pin.name == name)
    columns = select(
        Pin.pin_id, Pin.checkpoint_id, Pin.kind, Pin.name, Pin.created_at, Pin.expires_at
    )
    rows = connection.execute(columns.where(*chosen).order_by(Pin.checkpoint_id, Pin.created_at))
    found = [{"job_name": job_name, **row} for row in rows.mappings()]
    if not found:
        raise _no_such_pin(connection, job)
    return found


def remove_pins(connection: Connection, job_name: str, pin_ids: Sequence[UUID]) -> None:
    """Removes pins; from then on cleanups may subsume what nothing else keeps."""
    job = find_job(connection, job_name, locked=True)
    connection.execute(
        update(Pin).where(*_open(job.job_id), Pin.pin_id.in_(pin_ids)).values(removed_at=func.now())
    )


def remove_expired_pins(connection: Connection, job_id: str) -> int:
    """Removes the pins of a job whose time is over, by the database's clock; returns how many."""
    # Mostly there is none, and batches need not wait.
    if not count_expired_pins(connection, job_id):
        return 0
    # The lock under which a pin is made to last longer, and a plan is applied.
    lock_job(connection, job_id, exclusive=True)
    return connection.execute(
        update(Pin).where(*_expired(job_id)).values(removed_at=func.now())
    ).rowcount


def count_expired_pins(connection: Connection, job_id: str) -> int:
    """Returns how many pins of a job `remove_expired_pins` would remove now."""
    return connection.scalar(select(func.count()).where(*_expired(job_id))) or 0


def _expired(job_id: str) -> tuple[ColumnElement[bool], ...]:
    return *_open(job_id), Pin.expires_at <= func.now()


def _expiry(connection: Connection, lasts_ms: int | None) -> datetime | None:
    if lasts_ms is None:
        return None
    lasts = func.make_interval(0, 0, 0, 0, 0, 0, lasts_ms / 1000)
    return connection.scalar(select(func.now(type_=DateTime(timezone=True)) + lasts))


def _open(job_id: str) -> tuple[ColumnElement[bool], ...]:
    return Pin.job_id == job_id, Pin.removed_at.is_(None)


def _chosen(
    connection: Connection, job: Row[*tuple[Any, ...]], checkpoint_id: int | None
) -> Row[*tuple[Any, ...]]:
    columns = (
        Checkpoint.checkpoint_id,
        Checkpoint.status,
        Checkpoint.query_id,
        Checkpoint.batch_id,
    )
    of_job = select(*columns).where(Checkpoint.job_id == job.job_id)
    confirmed = of_job.where(Checkpoint.status == CheckpointStatus.CONFIRMED).order_by(
        Checkpoint.checkpoint_id
    )
    if checkpoint_id is None:
        newest = connection.execute(
            confirmed.order_by(None).order_by(Checkpoint.checkpoint_id.desc()).limit(1)
        ).one_or_none()
        if newest is None:
            raise RefusedError(
                "no checkpoint is confirmed yet: a batch is, once the one after it has begun",
                job=job.name,
            )
        return newest
    found = connection.execute(
        of_job.where(Checkpoint.checkpoint_id == checkpoint_id)
    ).one_or_none()
    if found is None or found.status != CheckpointStatus.CONFIRMED:
        ids = [str(row.checkpoint_id) for row in connection.execute(confirmed)]
        what = f"is {found.status.value}" if found else "does not exist"
        raise RefusedError(
            f"checkpoint {checkpoint_id} {what}; those that can be pinned are "
            f"{', '.join(ids) or 'none yet'}",
            job=job.name,
        )
    return found


def _no_such_pin(connection: Connection, job: Row[*tuple[Any, ...]]) -> BadInputError:
    pins = connection.execute(
        select(Pin.checkpoint_id, Pin.name).where(*_open(job.job_id)).order_by(Pin.checkpoint_id)
    )
    there = [f"{pin.checkpoint_id}{f' ({pin.name})' if pin.name else ''}" for pin in pins]
    return BadInputError(
        f"no such pin; pinned are: {', '.join(there)}" if there else "no checkpoint is pinned",
        job=job.name,
    )
