"""Registering a run: the job, its schemas and the fencing epoch, when a query's plan is built."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, func, select
from sqlalchemy.dialects.postgresql import insert

from cairn.catalog.job.states import (
    OPERATOR_KINDS,
    RegisteredState,
    adopt_states,
    columns,
    describe,
    dropped_state_ids,
    ids_of,
    layouts_of,
    operator_lists,
    register_states,
)
from cairn.catalog.jobs import find_job
from cairn.errors import BadInputError, RefusedError
from cairn.keygroups import default_max_parallelism
from cairn.layout import new_job_id
from cairn.manifest import Manifest
from cairn.settings import (
    FILE_RETENTION_MS,
    HISTORY_MAX_CHECKPOINTS,
    HISTORY_RETENTION_MS,
    MATERIALIZE_INTERVAL_MS,
)
from cairn.state.handle import StateDeclaration
from metastore.enums import CheckpointStatus, MaterializedBy, StateKind
from metastore.models import Checkpoint, Job, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A run to register. `run_id` makes registering it twice the same as once."""

    run_id: UUID
    job: str
    storage: str
    parallelism: int
    max_parallelism: int | None
    """None: as the job has it; a new one as its origin, else by its parallelism."""
    num_retained: int
    key_schema: Mapping[str, Any]
    states: Sequence[StateDeclaration]
    deleted_states: Collection[str] = ()
    time_mode: str = "none"
    watermark_delays_ms: Sequence[int] = ()
    """Of `withWatermark`, by input of the operator; none without event time."""
    watermark_job_id: str | None = None
    """The job upstream whose watermark counts, instead of delays of its own."""
    file_retention_ms: int = FILE_RETENTION_MS
    keeps_manifest: bool = False
    """Whether it writes manifests, and the newest checkpoint that has one is to stay."""
    history_retention_ms: int = HISTORY_RETENTION_MS
    history_max_checkpoints: int = HISTORY_MAX_CHECKPOINTS
    open_file_bytes: int | None = None
    """Files below this size may be continued by a later checkpoint; None: none is."""
    materialized_by: MaterializedBy = MaterializedBy.STREAM
    materialize_interval_ms: int = MATERIALIZE_INTERVAL_MS
    supervisor_id: UUID | None = None
    """Who does what is asked of it (`cairn.catalog.requests`); None: nobody."""
    origin: Manifest | None = None
    """The manifest that the job is restored from, if it has no state yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredRun:
    """A registered run, as its tasks carry it. `states` is by name.

    `has_state` tells whether Spark has committed a batch of the job, whose state is continued.
    `split_lists` and `union_lists` are the ids of all operator lists that the job keeps, also of
    those that the run does not declare.
    """

    job_id: str
    epoch: int
    max_parallelism: int
    states: Mapping[str, RegisteredState]
    dropped_state_ids: tuple[int, ...] = ()
    has_state: bool = False
    split_lists: tuple[int, ...] = ()
    union_lists: tuple[int, ...] = ()


def register_run(connection: Connection, registration: Registration) -> RegisteredRun:
    """Creates the job if it is new and gives the run its epoch. Changes nothing for other runs.

    What the run is built with, such as options and layouts, becomes the job's at its first begin.

    Raises:
        BadInputError: the job exists, or its origin was made, with another storage, max
            parallelism, key or state schema; or it has fewer key groups than `parallelism`.
        RefusedError: it is to be restored, but has begun batches or state variables of its own.
    """
    job = _locked_job(connection, registration)
    if registration.max_parallelism is None:
        registration = replace(registration, max_parallelism=job.max_parallelism)
    _check_unchanged(registration, job)
    has_state = _has_state(connection, job.job_id)
    if registration.origin is not None and not has_state:
        _adopt(connection, registration, registration.origin, job.job_id)
    # After adopting: the ids in the manifest's entries are taken, and new ones follow.
    states = register_states(connection, job.job_id, registration.job, registration.states)
    deleted = ids_of(connection, job.job_id, registration.deleted_states)
    lists = operator_lists(connection, job.job_id)
    declared = {
        states[state.name].state_id: StateKind(state.kind)
        for state in registration.states
        if StateKind(state.kind) in OPERATOR_KINDS
    }
    kept = [(i, kind) for i, kind in sorted((lists | declared).items()) if i not in deleted]
    return RegisteredRun(
        job_id=job.job_id,
        max_parallelism=job.max_parallelism,
        epoch=_epoch(connection, job.job_id, registration, states, deleted),
        states=states,
        dropped_state_ids=(
            *dropped_state_ids(connection, job.job_id),
            *(i for i in deleted if i not in lists),
        ),
        # As it was before: whoever builds the plan has still to restore what was adopted.
        has_state=has_state,
        split_lists=tuple(state_id for state_id, kind in kept if kind is StateKind.OPERATOR_LIST),
        union_lists=tuple(state_id for state_id, kind in kept if kind is StateKind.OPERATOR_UNION),
    )


def _locked_job(connection: Connection, registration: Registration) -> Row[*tuple[Any, ...]]:
    """Returns the job's row, locked; a new one if the job is new."""
    connection.execute(
        insert(Job)
        .values(
            job_id=new_job_id(registration.job),
            name=registration.job,
            storage=registration.storage,
            max_parallelism=_max_parallelism_if_new(registration),
            num_retained=registration.num_retained,
            key_schema=dict(registration.key_schema),
        )
        .on_conflict_do_nothing(index_elements=[Job.name])
    )
    # Somebody has it, who need not be one whose jobs this login sees.
    if connection.scalar(select(Job.job_id).where(Job.name == registration.job)) is None:
        raise BadInputError(
            "another tenant of the metastore has a job of this name. Give this one another name",
            job=registration.job,
        )
    job = find_job(connection, registration.job, locked=True)
    if job.dropped_at is not None:
        raise RefusedError(
            "the job was dropped, and its state is being deleted; a new job cannot have its name, "
            f"which is the id of the one that was called {job.former_name!r}",
            job=registration.job,
        )
    return job


def _max_parallelism_if_new(registration: Registration) -> int:
    if registration.max_parallelism is not None:
        return registration.max_parallelism
    if registration.origin is not None:
        return registration.origin.max_parallelism
    return default_max_parallelism(registration.parallelism)


def job_has_state(connection: Connection, job: str) -> bool:
    """Tells whether there is a job of this name with a batch that Spark has committed."""
    job_id = connection.scalar(select(Job.job_id).where(Job.name == job))
    return job_id is not None and _has_state(connection, job_id)


def _adopt(
    connection: Connection, registration: Registration, origin: Manifest, job_id: str
) -> None:
    """Refuses an origin that does not fit, and gives the job its state variables."""
    _check_same(
        registration,
        "the manifest",
        max_parallelism=origin.max_parallelism,
        time_mode=origin.time_mode,
        key_schema=origin.key_schema,
    )
    if connection.scalar(select(Checkpoint.checkpoint_id).where(Checkpoint.job_id == job_id)):
        raise begun_without_origin(registration.job)
    adopt_states(connection, job_id, registration.job, origin.variables)


def begun_without_origin(job: str) -> RefusedError:
    """Returns the error for restoring a job that has begun from no state."""
    return RefusedError(
        "the job has begun batches without restoring, so it is not restored any more. Give the "
        "new query a job name of its own, or leave out restore_from to continue from its own state",
        job=job,
    )


def _has_state(connection: Connection, job_id: str) -> bool:
    # Not COMPLETED: Spark may run that batch again, and then it is as if it never was.
    of_job = select(Checkpoint.checkpoint_id).where(
        Checkpoint.job_id == job_id, Checkpoint.status == CheckpointStatus.CONFIRMED
    )
    return bool(connection.scalar(select(of_job.exists())))


def _epoch(
    connection: Connection,
    job_id: str,
    registration: Registration,
    states: Mapping[str, RegisteredState],
    deleted_state_ids: list[int],
) -> int:
    # The transaction again, after its answer was lost.
    known = connection.scalar(select(Run.epoch).where(Run.run_id == registration.run_id))
    if known is not None:
        return known
    # The lock of the job's row, held by `register_run`, keeps two runs from one epoch.
    newest = select(func.coalesce(func.max(Run.epoch), 0) + 1).where(Run.job_id == job_id)
    return connection.execute(
        insert(Run)
        .values(
            job_id=job_id,
            epoch=newest.scalar_subquery(),
            run_id=registration.run_id,
            parallelism=registration.parallelism,
            supervisor_id=registration.supervisor_id,
            watermark_delays_ms=list(registration.watermark_delays_ms),
            watermark_job_id=registration.watermark_job_id,
            state_ids=[state.state_id for state in states.values()],
            deleted_state_ids=deleted_state_ids,
            layouts=layouts_of(connection, job_id, registration.states, states),
            time_mode=registration.time_mode,
            num_retained=registration.num_retained,
            file_retention_ms=registration.file_retention_ms,
            keeps_manifest=registration.keeps_manifest,
            history_retention_ms=registration.history_retention_ms,
            history_max_checkpoints=registration.history_max_checkpoints,
            open_file_bytes=registration.open_file_bytes,
            materialized_by=registration.materialized_by,
            materialize_interval_ms=registration.materialize_interval_ms,
        )
        .returning(Run.epoch)
    ).scalar_one()


def _check_unchanged(registration: Registration, job: Row[*tuple[Any, ...]]) -> None:
    if registration.storage != job.storage:
        raise _differs(
            registration, "storage", registration.storage, "the job's state", job.storage
        )
    _check_same(
        registration,
        "the job's state",
        max_parallelism=job.max_parallelism,
        time_mode=job.time_mode,
        key_schema=job.key_schema,
    )
    # A subtask without key groups would wait for rows that never come.
    if registration.parallelism > job.max_parallelism:
        raise BadInputError(
            f"parallelism is {registration.parallelism}, but the job's state is divided into "
            f"{job.max_parallelism} key groups, a number that is fixed. Lower parallelism to "
            f"{job.max_parallelism}, or start a new job, which gets more key groups "
            "(cairn.max-parallelism)",
            job=registration.job,
        )


def _check_same(
    registration: Registration,
    whose: str,
    *,
    max_parallelism: int,
    time_mode: str | None,
    key_schema: Mapping[str, Any],
) -> None:
    for what, given, known in (
        ("cairn.max-parallelism", registration.max_parallelism, max_parallelism),
        ("timeMode", registration.time_mode, time_mode),
    ):
        if known is not None and given != known:
            raise _differs(registration, what, given, whose, known)
    if columns(registration.key_schema) != columns(key_schema):
        raise BadInputError(
            f"the key is {describe(registration.key_schema)}, but {whose} was made with "
            f"the key {describe(key_schema)}. Group by that key, or give the new query a job "
            "name of its own",
            job=registration.job,
        )


def _differs(
    registration: Registration, what: str, given: object, whose: str, known: object
) -> BadInputError:
    return BadInputError(
        f"{what} is {given!r}, but {whose} was made with {known!r}. "
        "Start it with that, or give the new query a job name of its own",
        job=registration.job,
    )


def refuse_second_query(job: str, first: str, second: str) -> RefusedError:
    """Returns the error for a query that meets a job which belongs to another one."""
    return RefusedError(
        f"the job belongs to query {first}; query {second} must not touch its state. Start that "
        "query again with its own checkpointLocation, or give this one a job name of its own",
        job=job,
    )
