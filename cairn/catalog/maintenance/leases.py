"""The lease of a maintenance run: one process applies a stored plan at a time.

The functions of `metastore/functions/leases.sql`, by the database's clock. A process that has lost
its lease never has it again, so whatever it still does under it is refused. A retry is another
process with an id of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

from cairn.catalog.maintenance.plans import PLAN_LIFE_MIN
from metastore.enums import MaintenanceStatus

LEASE_MS = 60_000
"""How long a lease is good for, unless it is renewed: some retries of a metastore that is away."""

_RUN = "CAST(:run_id AS uuid), CAST(:holder AS uuid)"
_TAKE = text(f"SELECT cairn.take_lease({_RUN}, :lease_ms, :plan_life_ms)")
_REQUIRE = text(f"SELECT cairn.require_lease({_RUN})")
_RENEW = text(f"SELECT cairn.renew_lease({_RUN}, :lease_ms)")
_FINISH = text(
    f"SELECT cairn.finish_maintenance_run({_RUN}, :status, CAST(:result AS jsonb))"
).bindparams(bindparam("result", type_=JSONB))


def take_lease(
    connection: Connection, run_id: UUID, holder: UUID, *, lease_ms: int = LEASE_MS
) -> None:
    """Makes a process the holder of a maintenance run, which is RUNNING from then on.

    `holder` is an id that the process has made for this run. Again by the holder, as after a lost
    answer: changes nothing.

    Raises:
        FencedError: another process holds the lease, or this one has had and lost it. It comes from
            the database, by way of `Catalog.run`, as do those of the other functions.
        RefusedError: the run is over, or waits for a person to pass a circuit breaker; or its plan
            is older than `PLAN_LIFE_MIN`.
    """
    values = _of(run_id, holder) | {"lease_ms": lease_ms, "plan_life_ms": PLAN_LIFE_MIN * 60_000}
    connection.execute(_TAKE, values)


def require_lease(connection: Connection, run_id: UUID, holder: UUID) -> None:
    """Locks a maintenance run until the transaction ends, for its holder.

    Nobody takes the lease before that, so what the transaction writes is the holder's.

    Raises:
        FencedError: the process does not hold the lease any more.
    """
    connection.execute(_REQUIRE, _of(run_id, holder))


def renew_lease(
    connection: Connection, run_id: UUID, holder: UUID, *, lease_ms: int = LEASE_MS
) -> None:
    """Makes a lease last for `lease_ms` from now on.

    Raises:
        FencedError: the process does not hold the lease any more.
    """
    connection.execute(_RENEW, _of(run_id, holder) | {"lease_ms": lease_ms})


def release_lease(connection: Connection, run_id: UUID, holder: UUID) -> None:
    """Gives a lease up, so that a retry need not wait for its end. The run stays RUNNING.

    Raises:
        FencedError: the process does not hold the lease any more.
    """
    connection.execute(_RENEW, _of(run_id, holder) | {"lease_ms": 0})


def finish(
    connection: Connection,
    run_id: UUID,
    holder: UUID,
    status: MaintenanceStatus,
    result: Mapping[str, Any],
) -> None:
    """Ends a maintenance run as APPLIED or FAILED, with what it has done.

    Again by the same holder, as after a lost answer: changes nothing.

    Raises:
        FencedError: the process does not hold the lease any more.
    """
    connection.execute(
        _FINISH, _of(run_id, holder) | {"status": status.value, "result": dict(result)}
    )


def _of(run_id: UUID, holder: UUID) -> dict[str, Any]:
    return {"run_id": run_id, "holder": holder}
