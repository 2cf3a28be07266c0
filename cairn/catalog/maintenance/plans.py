"""Stored plans of maintenance actions: the rows that appliers of any process start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from cairn.catalog.job.fencing import lock_job
from cairn.errors import BadInputError, RefusedError
from metastore.enums import DecisionKind, MaintenanceAction, MaintenanceStatus
from metastore.models import Job, MaintenanceDecision, MaintenanceRun

PLAN_LIFE_MIN = 60
"""A plan older than this, by the database's clock, is refused."""

_OPEN = (MaintenanceStatus.PLANNED, MaintenanceStatus.REFUSED)
_IS_LOST = (MaintenanceRun.status == MaintenanceStatus.RUNNING) & (
    MaintenanceRun.leased_until <= func.now()
)


_NOTE_GOOD_RUN = text("""
    INSERT INTO cairn.good_runs AS g (job_id, action)
    SELECT j.job_id, :action FROM cairn.jobs AS j
    WHERE j.job_id = :job_id AND j.dropped_at IS NULL
    ON CONFLICT (job_id, action) DO UPDATE
    SET finished_at = greatest(g.finished_at, excluded.finished_at)
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPlan:
    """A plan to store. `files` and `size_bytes` are of what it deletes.

    `breakers` are the circuit breakers that spoke, as JSON values, each with the key `breaker`.
    """

    job_id: str
    action: MaintenanceAction
    plan: Mapping[str, Any]
    sha256: str
    files: int = 0
    size_bytes: int = 0
    breakers: Sequence[Mapping[str, str]] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """A maintenance run's row. `result` is what applying it has changed, once it is over.

    One that `is_expired` cannot be applied any more, and was not: it is too old, and nobody holds
    its lease, or it has failed.
    """

    run_id: UUID
    job_id: str
    job: str
    action: MaintenanceAction
    plan: Mapping[str, Any]
    sha256: str
    files: int
    size_bytes: int
    status: MaintenanceStatus
    result: Mapping[str, Any] | None
    planned_at: datetime
    breakers: Sequence[Mapping[str, str]]
    passed_by: str | None
    is_expired: bool

    @property
    def spoken(self) -> tuple[str, ...]:
        """The names of the circuit breakers that spoke."""
        return tuple(one["breaker"] for one in self.breakers)


def store_plan(connection: Connection, run_id: UUID, new: NewPlan) -> None:
    """Stores a plan under the id of its maintenance run: REFUSED if a breaker spoke, else PLANNED.

    Again, after a lost answer: changes nothing.

    Raises:
        FencedError: the job was dropped, and its rows are gone.
    """
    lock_job(connection, new.job_id, exclusive=False)
    stored = connection.execute(
        insert(MaintenanceRun)
        .values(
            maintenance_run_id=run_id,
            job_id=new.job_id,
            action=new.action,
            plan=dict(new.plan),
            plan_sha256=new.sha256,
            planned_files=new.files,
            planned_bytes=new.size_bytes,
            breakers=[dict(one) for one in new.breakers],
            status=MaintenanceStatus.REFUSED if new.breakers else MaintenanceStatus.PLANNED,
        )
        .on_conflict_do_nothing(index_elements=[MaintenanceRun.maintenance_run_id])
    ).rowcount
    if stored:
        _note(connection, run_id, new.job_id, DecisionKind.REFUSED, new.breakers)


def note_good_run(connection: Connection, job_id: str, action: MaintenanceAction) -> None:
    """Notes that an action had nothing to do for a job; of one that was done a trigger notes it.

    Of a job that was dropped nothing is noted.
    """
    connection.execute(_NOTE_GOOD_RUN, {"job_id": job_id, "action": action.value})


def read_plan(connection: Connection, run_id: UUID) -> StoredPlan:
    """Returns a stored plan.

    Raises:
        BadInputError: there is none of this id.
    """
    run = MaintenanceRun
    row = connection.execute(
        select(
            run.maintenance_run_id.label("run_id"),
            run.job_id,
            Job.name.label("job"),
            run.action,
            run.plan,
            run.plan_sha256.label("sha256"),
            run.planned_files.label("files"),
            run.planned_bytes.label("size_bytes"),
            run.status,
            run.result,
            run.planned_at,
            run.breakers,
            run.passed_by,
            (
                (run.status.in_(_OPEN) | _IS_LOST)
                & (func.now() - run.planned_at > func.make_interval(0, 0, 0, 0, 0, PLAN_LIFE_MIN))
                | (run.status == MaintenanceStatus.FAILED)
            ).label("is_expired"),
        )
        .join(Job, Job.job_id == run.job_id)
        .where(run.maintenance_run_id == run_id)
    ).one_or_none()
    if row is None:
        raise BadInputError(
            f"no plan {run_id}: `cairn runs` lists them. Its job was dropped, its row was trimmed, "
            "or it is of another metastore"
        )
    return StoredPlan(**row._mapping)


def pass_breakers(connection: Connection, run_id: UUID, names: Sequence[str], by: str) -> None:
    """Makes a plan PLANNED again that circuit breakers have refused, in the name of a person.

    Each that spoke has to be named. Again by the same person: changes nothing.

    Raises:
        BadInputError: there is no such plan, or nobody is named.
        RefusedError: a breaker spoke that is not named, the plan is not REFUSED, or it is older
            than `PLAN_LIFE_MIN`.
    """
    if not by.strip():
        raise BadInputError("say who passes the circuit breaker: it is recorded")
    connection.execute(
        select(MaintenanceRun.status)
        .where(MaintenanceRun.maintenance_run_id == run_id)
        .with_for_update()
    )
    found = read_plan(connection, run_id)
    if found.status is not MaintenanceStatus.REFUSED:
        if found.passed_by == by:
            return
        by_whom = f", passed by {found.passed_by}" if found.passed_by else ""
        raise RefusedError(
            f"plan {run_id} is {found.status}{by_whom}: there is no circuit breaker to pass",
            job=found.job,
        )
    if found.is_expired:
        raise RefusedError(
            f"plan {run_id} is older than {PLAN_LIFE_MIN} min, so it is too late to pass its "
            f"circuit breakers; nothing was changed. Make a new one: `cairn plan {found.action} "
            f"{found.job}`",
            job=found.job,
        )
    if missing := set(found.spoken) - set(names):
        raise RefusedError(
            f"{' and '.join(sorted(missing))} spoke about plan {run_id}, too. Look at `cairn runs "
            f"{found.job}`, and name each breaker that you pass",
            job=found.job,
        )
    connection.execute(
        update(MaintenanceRun)
        .where(MaintenanceRun.maintenance_run_id == run_id)
        .values(status=MaintenanceStatus.PLANNED, passed_by=by, passed_at=func.now())
    )
    passed = [{**one, "found": f"by {by}: {one['found']}"} for one in found.breakers]
    _note(connection, run_id, found.job_id, DecisionKind.PASSED, passed)


def _note(
    connection: Connection,
    run_id: UUID,
    job_id: str,
    decision: DecisionKind,
    breakers: Sequence[Mapping[str, str]],
) -> None:
    for one in breakers:
        connection.execute(
            insert(MaintenanceDecision)
            .values(
                maintenance_run_id=run_id,
                job_id=job_id,
                decision=decision,
                reason=f"{one['breaker']}: {one['found']} ({one['limit']})",
            )
            .on_conflict_do_nothing()
        )
