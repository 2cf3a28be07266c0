"""Registering a run: the job, its schemas and the fencing epoch, when a query's plan is built."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, func, select, update
from sqlalchemy.dialects.postgresql import insert

from cairn.errors import BadInputError, RefusedError
from cairn.layout import new_job_id
from cairn.state.handle import StateDeclaration
from metastore.models import Job, Run, StateKind, StateVariable


@dataclass(frozen=True, slots=True)
class Registration:
    """What a plan says of itself. `run_id` makes registering it twice the same as once."""

    run_id: UUID
    job: str
    storage: str
    parallelism: int
    max_parallelism: int
    num_retained: int
    key_schema: Mapping[str, Any]
    states: Sequence[StateDeclaration]
    deleted_states: Collection[str] = ()
    watermark_delays_ms: Sequence[int] = ()
    """Of `withWatermark`, by input of the operator; none without event time."""
    watermark_job_id: str | None = None
    """The job upstream whose watermark counts, instead of delays of its own."""


@dataclass(frozen=True, slots=True)
class RegisteredRun:
    """What the metastore answers: ids that the run's tasks carry. `state_ids` is by name."""

    job_id: str
    epoch: int
    state_ids: Mapping[str, int]


def register_run(connection: Connection, registration: Registration) -> RegisteredRun:
    """Creates the job if it is new and gives the run its epoch. Fences nobody yet.

    Raises:
        BadInputError: the job exists with another storage, max parallelism, key or state schema.
    """
    connection.execute(
        insert(Job)
        .values(
            job_id=new_job_id(registration.job),
            name=registration.job,
            storage=registration.storage,
            max_parallelism=registration.max_parallelism,
            num_retained=registration.num_retained,
            key_schema=dict(registration.key_schema),
        )
        .on_conflict_do_nothing(index_elements=[Job.name])
    )
    job = connection.execute(
        select(Job.__table__).where(Job.name == registration.job).with_for_update()
    ).one()
    _check_unchanged(registration, job)
    state_ids = _register_states(connection, job.job_id, registration)
    if job.num_retained != registration.num_retained:
        connection.execute(
            update(Job)
            .where(Job.job_id == job.job_id)
            .values(num_retained=registration.num_retained)
        )
    return RegisteredRun(job.job_id, _epoch(connection, job.job_id, registration), state_ids)


def _epoch(connection: Connection, job_id: str, registration: Registration) -> int:
    known = connection.scalar(select(Run.epoch).where(Run.run_id == registration.run_id))
    if known is not None:
        return known
    newest = select(func.coalesce(func.max(Run.epoch), 0) + 1).where(Run.job_id == job_id)
    return connection.execute(
        insert(Run)
        .values(
            job_id=job_id,
            epoch=newest.scalar_subquery(),
            run_id=registration.run_id,
            parallelism=registration.parallelism,
            watermark_delays_ms=list(registration.watermark_delays_ms),
            watermark_job_id=registration.watermark_job_id,
        )
        .returning(Run.epoch)
    ).scalar_one()


def _check_unchanged(registration: Registration, job: Row[*tuple[Any, ...]]) -> None:
    for what, given, known in (
        ("storage", registration.storage, job.storage),
        ("cairn.max-parallelism", registration.max_parallelism, job.max_parallelism),
    ):
        if given != known:
            raise BadInputError(
                f"{what} is {given!r}, but the job's state was made with {known!r}. "
                "Start it with that, or give the new query a job name of its own",
                job=registration.job,
            )
    if columns(registration.key_schema) != columns(job.key_schema):
        raise BadInputError(
            f"the key is {describe(registration.key_schema)}, but the job's state was made with "
            f"the key {describe(job.key_schema)}. Group by that key, or give the new query a job "
            "name of its own",
            job=registration.job,
        )


def _register_states(
    connection: Connection, job_id: str, registration: Registration
) -> dict[str, int]:
    rows = connection.execute(
        select(StateVariable.__table__).where(StateVariable.job_id == job_id)
    ).all()
    known = {row.name: row for row in rows}
    ids = {name: row.state_id for name, row in known.items()}
    if doomed := sorted(known.keys() & set(registration.deleted_states)):
        raise BadInputError(
            f"deleteIfExists of {', '.join(doomed)}: the job has state of that name, and this "
            "version cannot delete a state variable. Leave the call out; the state stays unused",
            job=registration.job,
        )
    for state in registration.states:
        if state.name in known:
            _check_state(registration.job, state, known[state.name])
            continue
        ids[state.name] = max(ids.values(), default=0) + 1
        connection.execute(
            insert(StateVariable).values(
                job_id=job_id,
                state_id=ids[state.name],
                name=state.name,
                kind=StateKind(state.kind),
                value_schema=state.value_schema,
                user_key_schema=state.user_key_schema,
            )
        )
    return ids


def _check_state(job: str, state: StateDeclaration, known: Row[*tuple[Any, ...]]) -> None:
    given = (state.kind, columns(state.value_schema), columns(state.user_key_schema))
    before = (known.kind.value, columns(known.value_schema), columns(known.user_key_schema))
    if given != before:
        raise BadInputError(
            f"state variable {state.name!r} is a {state.kind} of {describe(state.value_schema)}, "
            f"but the job's state was made with a {known.kind.value} of "
            f"{describe(known.value_schema)}. Keep the schema, or use a new variable name",
            job=job,
        )


def columns(schema: Mapping[str, Any] | None) -> list[tuple[str, Any]] | None:
    """Returns what must stay the same of a schema: names and types, not nullability."""
    if schema is None:
        return None
    return [(field["name"], field["type"]) for field in schema["fields"]]


def describe(schema: Mapping[str, Any]) -> str:
    """Returns a schema in words, such as `word string, window long`."""
    return ", ".join(f"{name} {kind}" for name, kind in columns(schema) or [])


def refuse_second_query(job: str, first: str, second: str) -> RefusedError:
    """Returns the error for a query that meets a job which belongs to another one."""
    return RefusedError(
        f"the job belongs to query {first}; query {second} must not touch its state. Start that "
        "query again with its own checkpointLocation, or give this one a job name of its own",
        job=job,
    )
