"""State variables of a job: made, kept, changed within limits, dropped and made again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, null, select, text
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
    """Returns the declared variables by name; those that are new get ids.

    They become the job's when the run begins. A variable that is not declared stays, with its
    state, unused.

    Raises:
        BadInputError: a variable exists with another kind or TTL, or with a schema whose values
            the new one could not read.
    """
    rows = connection.execute(
        select(StateVariable.__table__).where(StateVariable.job_id == job_id)
    ).all()
    known = {row.name: row for row in rows if row.dropped_at is None}
    given = _given_ids(connection, job_id)
    taken = {row.state_id for row in rows}
    # Dropped ones count: their entries may still be in segments, under their ids.
    highest = max([*taken, *given], default=0)
    # Of plans that have not begun. Under one id, so that not only the first of them can begin.
    planned = {name: state_id for state_id, name in given.items() if state_id not in taken}
    registered: dict[str, RegisteredState] = {}
    for state in states:
        if state.name in known:
            registered[state.name] = _kept(job, state, known[state.name])
        elif state.name in planned:
            registered[state.name] = RegisteredState(planned[state.name], state.value_schema)
        else:
            # The job's row is locked by `register_run`, so no other run takes the id.
            highest += 1
            registered[state.name] = RegisteredState(highest, state.value_schema)
    return registered


def _given_ids(connection: Connection, job_id: str) -> dict[int, str]:
    """Returns the ids, with names, of all variables that any plan of the job has declared."""
    return {row.state_id: row.name for row in connection.execute(_GIVEN, {"job_id": job_id})}


_GIVEN = text("""
    SELECT DISTINCT CAST(v.key AS integer) AS state_id, v.value ->> 'name' AS name
    FROM cairn.runs AS r CROSS JOIN LATERAL jsonb_each(r.layouts) AS v
    WHERE r.job_id = :job_id
    ORDER BY state_id
""")


def layouts_of(
    connection: Connection,
    job_id: str,
    states: Sequence[StateDeclaration],
    registered: Mapping[str, RegisteredState],
) -> dict[str, dict[str, Any]]:
    """Returns what a run needs of the job's variables when it begins, by id.

    These are the declared ones, and the operator lists that it carries over. `before` is the layout
    that the job had when the plan was built; None if it had no such variable.
    """
    rows = connection.execute(
        select(StateVariable.__table__).where(
            StateVariable.job_id == job_id, StateVariable.dropped_at.is_(None)
        )
    ).all()
    known = {row.state_id: row for row in rows}
    layouts = {
        str(row.state_id): _layout(
            name=row.name,
            kind=row.kind,
            layout=row.value_schema,
            user_key_schema=row.user_key_schema,
            has_ttl=row.has_ttl,
            before=row.value_schema,
        )
        for row in rows
        if row.kind in OPERATOR_KINDS
    }
    for state in states:
        made = registered[state.name]
        before = known.get(made.state_id)
        layouts[str(made.state_id)] = _layout(
            name=state.name,
            kind=StateKind(state.kind),
            layout=made.value_layout,
            # Nullability may differ from the job's; what the job has stays.
            user_key_schema=before.user_key_schema if before else state.user_key_schema,
            has_ttl=state.ttl_ms is not None,
            before=before.value_schema if before else None,
        )
    return layouts


def _layout(
    *,
    name: str,
    kind: StateKind,
    layout: Mapping[str, Any],
    user_key_schema: Mapping[str, Any] | None,
    has_ttl: bool,
    before: Mapping[str, Any] | None,
) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind.value,
        "layout": dict(layout),
        "user_key_schema": user_key_schema and dict(user_key_schema),
        "has_ttl": has_ttl,
        "before": before and dict(before),
    }


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
                f"{known[variable.state_id][0]!r}: a plan was built before, and not from this "
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


def _kept(job: str, state: StateDeclaration, known: Row[*tuple[Any, ...]]) -> RegisteredState:
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
    return RegisteredState(
        known.state_id, merge(known.value_schema, state.value_schema, name=state.name)
    )


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
