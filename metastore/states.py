"""State variables of a job: made, kept, changed within limits, dropped and made again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, select, update
from sqlalchemy.dialects.postgresql import insert

from cairn.errors import BadInputError
from cairn.state.handle import StateDeclaration
from metastore.models import StateKind, StateVariable


def register_states(
    connection: Connection,
    job_id: str,
    job: str,
    states: Sequence[StateDeclaration],
    deleted: Collection[str],
) -> dict[str, int]:
    """Makes the variables that are new and drops those that are deleted; returns ids by name.

    A variable that is neither declared nor deleted stays, with its state, unused.

    Raises:
        BadInputError: a variable exists with another kind, schema or TTL.
    """
    rows = connection.execute(
        select(StateVariable.__table__).where(StateVariable.job_id == job_id)
    ).all()
    known = {row.name: row for row in rows if row.dropped_at is None}
    highest = max((row.state_id for row in rows), default=0)
    ids = {name: row.state_id for name, row in known.items()}
    for state in states:
        if state.name in known:
            _check_state(job, state, known[state.name])
            continue
        highest += 1
        ids[state.name] = highest
        connection.execute(
            insert(StateVariable).values(
                job_id=job_id,
                state_id=highest,
                name=state.name,
                kind=StateKind(state.kind),
                value_schema=dict(state.value_schema),
                user_key_schema=dict(state.user_key_schema) if state.user_key_schema else None,
                has_ttl=state.ttl_ms is not None,
            )
        )
    if doomed := known.keys() & set(deleted):
        connection.execute(
            update(StateVariable)
            .where(
                StateVariable.job_id == job_id,
                StateVariable.name.in_(doomed),
                StateVariable.dropped_at.is_(None),
            )
            .values(dropped_at=func.now())
        )
    return ids


def dropped_state_ids(connection: Connection, job_id: str) -> tuple[int, ...]:
    """Returns the ids of all variables that were dropped, whose entries are to go."""
    return tuple(
        connection.scalars(
            select(StateVariable.state_id)
            .where(StateVariable.job_id == job_id, StateVariable.dropped_at.is_not(None))
            .order_by(StateVariable.state_id)
        )
    )


def _check_state(job: str, state: StateDeclaration, known: Row[*tuple[Any, ...]]) -> None:
    if (state.ttl_ms is not None) != known.has_ttl:
        raise BadInputError(
            f"state variable {state.name!r} {'has no' if known.has_ttl else 'has'} ttlDurationMs, "
            "but the job's state was made the other way. A duration may change; for the rest use a "
            "new variable name",
            job=job,
        )
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
