"""State variables of a job: made, kept, changed within limits, dropped and made again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, null, select, update
from sqlalchemy.dialects.postgresql import insert

from cairn.errors import BadInputError, RefusedError
from cairn.manifest import ManifestVariable
from cairn.state.evolution import merge
from cairn.state.handle import StateDeclaration
from metastore.enums import StateKind
from metastore.models import StateVariable

OPERATOR_KINDS = (StateKind.OPERATOR_LIST, StateKind.OPERATOR_UNION)


@dataclass(frozen=True, slots=True)
class RegisteredState:
    """A variable's id, and the layout that its values are stored by (`cairn.state.evolution`)."""

    state_id: int
    value_layout: Mapping[str, Any]


def register_states(
    connection: Connection,
    job_id: str,
    job: str,
    states: Sequence[StateDeclaration],
) -> dict[str, RegisteredState]:
    """Makes the variables that are new; returns those that are declared by name.

    A variable that is not declared stays, with its state, unused.

    Raises:
        BadInputError: a variable exists with another kind or TTL, or with a schema whose values
            the new one could not read.
    """
    rows = connection.execute(
        select(StateVariable.__table__).where(StateVariable.job_id == job_id)
    ).all()
    known = {row.name: row for row in rows if row.dropped_at is None}
    # Dropped ones count: their entries may still be in segments, under their ids.
    highest = max((row.state_id for row in rows), default=0)
    registered: dict[str, RegisteredState] = {}
    for state in states:
        if state.name in known:
            registered[state.name] = _kept(connection, job, state, known[state.name])
            continue
        # The job's row is locked by `register_run`, so no other run takes the id.
        highest += 1
        registered[state.name] = RegisteredState(highest, state.value_schema)
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
    return registered


def adopt_states(
    connection: Connection, job_id: str, job: str, variables: Sequence[ManifestVariable]
) -> None:
    """Gives a new job the variables of a manifest, under their ids and with their layouts.

    Again with the same manifest it changes nothing.

    Raises:
        RefusedError: the job has other variables under these ids.
    """
    rows = connection.execute(select(StateVariable.__table__).where(StateVariable.job_id == job_id))
    known = {row.state_id: (row.name, row.kind.value, row.has_ttl) for row in rows}
    for variable in variables:
        facts = (variable.name, variable.kind, variable.has_ttl)
        if known.get(variable.state_id, facts) != facts:
            raise RefusedError(
                f"the job has state variables of its own, such as "
                f"{known[variable.state_id][0]!r}: its plan was built before, and not from this "
                "manifest. Give the new query a job name of its own",
                job=job,
            )
    adopted = [_adopted(job_id, v) for v in variables if v.state_id not in known]
    if adopted:
        connection.execute(insert(StateVariable).values(adopted))


def _adopted(job_id: str, variable: ManifestVariable) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "state_id": variable.state_id,
        "name": variable.name,
        "kind": StateKind(variable.kind),
        "value_schema": variable.value_layout,
        "user_key_schema": variable.user_key_schema,
        "has_ttl": variable.has_ttl,
        # Dropped ones are adopted, too: entries of theirs may be in the segments.
        "dropped_at": func.now() if variable.is_dropped else null(),
    }


def ids_of(connection: Connection, job_id: str, names: Collection[str]) -> list[int]:
    """Returns the ids of the variables that the job has of these names."""
    return list(
        connection.scalars(
            select(StateVariable.state_id).where(
                StateVariable.job_id == job_id,
                StateVariable.name.in_(names),
                StateVariable.dropped_at.is_(None),
            )
        )
    )


def drop_states(connection: Connection, job_id: str, job: str, run: Row[*tuple[Any, ...]]) -> None:
    """Drops the variables that a run deletes, when it begins.

    Raises:
        RefusedError: another run has dropped a variable that this one declares.
    """
    lost = connection.scalars(
        select(StateVariable.name).where(
            StateVariable.job_id == job_id,
            StateVariable.state_id.in_(run.state_ids),
            StateVariable.dropped_at.is_not(None),
        )
    ).all()
    # Its entries are being removed, and what this run would write under the id with them.
    if lost:
        raise RefusedError(
            f"the state variables {', '.join(lost)} were deleted by another run after this query's "
            "plan was built. Build the plan again: they start empty",
            job=job,
        )
    connection.execute(
        update(StateVariable)
        .where(
            StateVariable.job_id == job_id,
            StateVariable.state_id.in_(run.deleted_state_ids),
            StateVariable.dropped_at.is_(None),
        )
        .values(dropped_at=func.now())
    )


def dropped_state_ids(connection: Connection, job_id: str) -> list[int]:
    """Returns the ids of all variables by key that were dropped, whose entries are deleted."""
    return list(
        connection.scalars(
            select(StateVariable.state_id)
            .where(
                StateVariable.job_id == job_id,
                StateVariable.dropped_at.is_not(None),
                StateVariable.kind.not_in(OPERATOR_KINDS),
            )
            .order_by(StateVariable.state_id)
        )
    )


def operator_lists(connection: Connection, job_id: str) -> dict[int, StateKind]:
    """Returns the job's operator lists that are not dropped: how each is redistributed, by id."""
    rows = connection.execute(
        select(StateVariable.state_id, StateVariable.kind)
        .where(
            StateVariable.job_id == job_id,
            StateVariable.kind.in_(OPERATOR_KINDS),
            StateVariable.dropped_at.is_(None),
        )
        .order_by(StateVariable.state_id)
    )
    return {row.state_id: row.kind for row in rows}


def _kept(
    connection: Connection, job: str, state: StateDeclaration, known: Row[*tuple[Any, ...]]
) -> RegisteredState:
    """Returns a variable that the job has, with the new fields of its schema."""
    if (state.ttl_ms is not None) != known.has_ttl:
        raise BadInputError(
            f"state variable {state.name!r} {'has no' if known.has_ttl else 'has'} ttlDurationMs, "
            "but the job's state was made the other way. A duration may change; for the rest use a "
            "new variable name",
            job=job,
        )
    given = (state.kind, columns(state.user_key_schema))
    if given != (known.kind.value, columns(known.user_key_schema)):
        raise BadInputError(
            f"state variable {state.name!r} is a {_kind(state.kind, state.user_key_schema)}, but "
            f"the job's state was made with a {_kind(known.kind.value, known.user_key_schema)}. "
            "Keep it, or use a new variable name",
            job=job,
        )
    # The declared schema orders the fields; stored values keep the order of the layout.
    layout = merge(known.value_schema, state.value_schema, name=state.name)
    if layout != known.value_schema:
        connection.execute(
            update(StateVariable)
            .where(StateVariable.job_id == known.job_id, StateVariable.state_id == known.state_id)
            .values(value_schema=layout)
        )
    return RegisteredState(known.state_id, layout)


def _kind(kind: str, user_key_schema: Mapping[str, Any] | None) -> str:
    return kind if user_key_schema is None else f"{kind} by {describe(user_key_schema)}"


def columns(schema: Mapping[str, Any] | None) -> list[tuple[str, Any]] | None:
    """Returns what must stay the same of a schema: names and types, not nullability."""
    if schema is None:
        return None
    return [(field["name"], field["type"]) for field in schema["fields"]]


def describe(schema: Mapping[str, Any]) -> str:
    """Returns a schema in words, such as `word string, window long`."""
    return ", ".join(f"{name} {kind}" for name, kind in columns(schema) or [])
