"""`cairn state`: the entries of a checkpoint, read from its segments alone."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, select, text

from cairn.cli.commands import TIMEOUT_MS, unknown_job
from cairn.cli.output import print_json, print_table
from cairn.errors import BadInputError, CorruptSegmentError, RefusedError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange, range_of
from cairn.segments.snapshot import snapshot
from cairn.state.codec import TupleCodec
from cairn.state.entries import split
from cairn.storage import open_store
from metastore.checkpoints import segments_at
from metastore.engine import run_transaction
from metastore.migrate import require_current
from metastore.models import Checkpoint, CheckpointStatus, Job, StateKind, StateVariable

_READABLE = (CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED)


@dataclass(frozen=True, slots=True)
class Variable:
    """A state variable and how to read its bytes. `map_key` is None unless it is a map."""

    name: str
    kind: StateKind
    value: TupleCodec
    map_key: TupleCodec | None


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """All that is needed to read a checkpoint. `variables` is by state id."""

    job: str
    storage: str
    checkpoint_id: int
    parallelism: int
    max_parallelism: int
    key: TupleCodec
    variables: dict[int, Variable]
    handles: list[SegmentHandle]


def state(url: str, arguments: Namespace) -> int:
    """Prints the state of a job as of one checkpoint."""
    require_current(url, timeout_ms=TIMEOUT_MS)
    content = run_transaction(
        url,
        lambda connection: find_content(connection, arguments.job, arguments.checkpoint),
        timeout_ms=TIMEOUT_MS,
        what=f"finding the state of job {arguments.job}",
    )
    rows = entries(content, key=_wanted_key(arguments.key, content), name=arguments.name)
    if arguments.json:
        print_json(rows)
    else:
        columns = {"state": "state", "key": "key", "index": "index", "map_key": "map key"}
        print_table(rows, columns | {"value": "value"})
    return 0


def find_content(
    connection: Connection, job_name: str, checkpoint_id: int | None
) -> CheckpointContent:
    """Returns what a checkpoint holds; of the newest whole one where no id is given.

    Raises:
        BadInputError: there is no such job.
        RefusedError: the checkpoint cannot be read; the message lists those that can.
    """
    # One snapshot: a cleanup must not subsume the checkpoint between two reads.
    connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
    job = connection.execute(select(Job.__table__).where(Job.name == job_name)).one_or_none()
    if job is None:
        raise unknown_job(job_name, list(connection.scalars(select(Job.name).order_by(Job.name))))
    chosen, parallelism = _choose(connection, job_name, job.job_id, checkpoint_id)
    variables = connection.execute(
        select(StateVariable.__table__).where(StateVariable.job_id == job.job_id)
    )
    return CheckpointContent(
        job=job_name,
        storage=job.storage,
        checkpoint_id=chosen,
        parallelism=parallelism,
        max_parallelism=job.max_parallelism,
        key=TupleCodec(job.key_schema, name="key"),
        variables={row.state_id: _variable(row) for row in variables},
        handles=segments_at(connection, job.job_id, chosen, KeyGroupRange(0, job.max_parallelism)),
    )


def entries(
    content: CheckpointContent, *, key: dict[str, Any] | None = None, name: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yields a checkpoint's entries as JSON values, one subtask's key groups after another.

    Raises:
        BadInputError: there is no state variable of that name.
        CorruptSegmentError, StorageError: a segment cannot be read.
    """
    names = sorted(variable.name for variable in content.variables.values())
    if name is not None and name not in names:
        raise BadInputError(f"no state {name!r}; there are: {', '.join(names)}", job=content.job)
    return _entries(content, key, name)


def _entries(
    content: CheckpointContent, key: dict[str, Any] | None, name: str | None
) -> Iterator[dict[str, Any]]:
    store = open_store(content.storage)
    for subtask in range(content.parallelism):
        key_groups = range_of(subtask, content.parallelism, content.max_parallelism)
        folded = snapshot(store, content.handles, key_groups, job=content.job)
        parts = ((split(entry_key), value) for entry_key, value in folded.items())
        for (_, state_id, key_bytes), group in groupby(parts, key=lambda part: part[0][:3]):
            variable = content.variables.get(state_id)
            if variable is None:
                raise CorruptSegmentError(
                    f"a segment has state id {state_id}, which the job does not have",
                    job=content.job,
                    checkpoint=content.checkpoint_id,
                )
            shown = content.key.to_json(key_bytes)
            if name in (None, variable.name) and key in (None, shown):
                for index, (entry, value) in enumerate(group):
                    yield _row(variable, shown, index, entry.suffix, value)


def _row(
    variable: Variable, key: dict[str, Any], index: int, suffix: bytes, value: bytes
) -> dict[str, Any]:
    row: dict[str, Any] = {"state": variable.name, "key": key}
    if variable.kind is StateKind.LIST:
        row["index"] = index
    if variable.map_key is not None:
        row["map_key"] = variable.map_key.to_json(suffix)
    return row | {"value": variable.value.to_json(value)}


def _choose(
    connection: Connection, job: str, job_id: str, checkpoint_id: int | None
) -> tuple[int, int]:
    """Returns the id and the parallelism of the checkpoint to read."""
    whole = connection.execute(
        select(Checkpoint.checkpoint_id, Checkpoint.parallelism)
        .where(Checkpoint.job_id == job_id, Checkpoint.status.in_(_READABLE))
        .order_by(Checkpoint.checkpoint_id)
    ).all()
    readable = {row.checkpoint_id: row.parallelism for row in whole}
    if not readable:
        raise RefusedError("no checkpoint is complete yet: start the job's query", job=job)
    chosen = max(readable) if checkpoint_id is None else checkpoint_id
    if chosen not in readable:
        status = connection.scalar(
            select(Checkpoint.status).where(
                Checkpoint.job_id == job_id, Checkpoint.checkpoint_id == chosen
            )
        )
        raise BadInputError(
            f"checkpoint {chosen} {f'is {status.value}' if status else 'does not exist'}; "
            f"those that can be read are {', '.join(map(str, readable))}",
            job=job,
        )
    return chosen, readable[chosen]


def _variable(row: Row[Any]) -> Variable:
    map_key = None
    if row.user_key_schema is not None:
        map_key = TupleCodec(row.user_key_schema, name=f"map key of state {row.name}")
    value = TupleCodec(row.value_schema, name=f"state {row.name}")
    return Variable(row.name, StateKind(row.kind), value, map_key)


def _wanted_key(given: str | None, content: CheckpointContent) -> dict[str, Any] | None:
    """Returns the key asked for as JSON values by field name."""
    if given is None:
        return None
    fields = content.key.field_names
    try:
        key = json.loads(given)
    except ValueError as error:
        raise BadInputError(
            f"--key takes JSON, such as '\"text\"', 7 or '{{\"{fields[0]}\": …}}'; found {given!r}"
        ) from error
    if not isinstance(key, dict):
        values = key if isinstance(key, list) else [key]
        key = dict(zip(fields, values, strict=False)) if len(values) == len(fields) else {}
    if key.keys() != set(fields):
        raise BadInputError(
            f"--key {given} does not fit the job's key, whose fields are {', '.join(fields)}",
            job=content.job,
        )
    return key
