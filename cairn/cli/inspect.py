"""`cairn state`: the entries of a checkpoint, read from its segments alone."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, select

from cairn.catalog.catalog import Catalog
from cairn.catalog.job.damage import restore_around
from cairn.catalog.job.segments import lists_at, read_one_instant
from cairn.catalog.jobs import find_job
from cairn.catalog.migrate import require_current
from cairn.cli.output import print_json, print_table
from cairn.errors import BadInputError, CorruptSegmentError, RefusedError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange, range_of
from cairn.segments.operator_segment import read_lists
from cairn.segments.snapshot import snapshot
from cairn.state.codec import TupleCodec
from cairn.state.entries import (
    TIMERS,
    TIMERS_BY_EXPIRY,
    TTL_BY_EXPIRY,
    EntryKey,
    decode_time,
    split,
)
from cairn.state.ttl import HEADER_BYTES
from cairn.storage import open_store
from metastore.enums import CheckpointStatus, StateKind
from metastore.models import Checkpoint, StateVariable

_READABLE = (CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED)
_INDEXES = {TIMERS_BY_EXPIRY, TTL_BY_EXPIRY}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TIMER_COLUMNS = {"key": "key", "expires": "expires (UTC)"}
_STATE_COLUMNS = {
    "state": "state",
    "key": "key",
    "subtask": "subtask",
    "index": "index",
    "map_key": "map key",
    "value": "value",
    "expires": "expires (UTC)",
}

Entry = tuple[EntryKey, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A state variable and how to read its bytes. `map_key` is None unless it is a map."""

    name: str
    kind: StateKind
    value: TupleCodec
    map_key: TupleCodec | None
    has_ttl: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContent:
    """All that is needed to read a checkpoint. `variables` is by state id.

    `hidden` are ids that are not shown: of indexes, and of state variables that were dropped.
    """

    job: str
    storage: str
    checkpoint_id: int
    parallelism: int
    max_parallelism: int
    key: TupleCodec
    variables: dict[int, Variable]
    hidden: set[int]
    handles: list[SegmentHandle]
    lists: dict[int, SegmentHandle]
    """Of operator lists, by subtask."""


def state(catalog: Catalog, arguments: Namespace) -> int:
    """Prints the state of a job, or its timers, as of one checkpoint."""
    require_current(catalog)
    content = catalog.run(
        f"finding the state of job {arguments.job}",
        lambda connection: find_content(connection, arguments.job, arguments.checkpoint),
    )
    key = _wanted_key(arguments.key, content)
    if arguments.timers:
        rows, columns = timers(content, key), _TIMER_COLUMNS
    else:
        rows, columns = entries(content, key, arguments.name), _STATE_COLUMNS
    if arguments.json:
        print_json(rows)
    else:
        print_table(rows, columns)
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
    read_one_instant(connection)
    job = find_job(connection, job_name)
    chosen, parallelism = _choose(connection, job_name, job.job_id, checkpoint_id)
    variables = connection.execute(
        select(StateVariable.__table__).where(StateVariable.job_id == job.job_id)
    ).all()
    return CheckpointContent(
        job=job_name,
        storage=job.storage,
        checkpoint_id=chosen,
        parallelism=parallelism,
        max_parallelism=job.max_parallelism,
        key=TupleCodec(job.key_schema, name="key"),
        # By id and not by name: a dropped variable's name may be taken by a new one.
        variables={row.state_id: _variable(row) for row in variables if row.dropped_at is None},
        hidden=_INDEXES | {row.state_id for row in variables if row.dropped_at is not None},
        handles=restore_around(
            connection, job.job_id, chosen, KeyGroupRange(0, job.max_parallelism)
        ).handles,
        lists=lists_at(connection, job.job_id, chosen),
    )


def entries(
    content: CheckpointContent, key: dict[str, Any] | None = None, name: str | None = None
) -> Iterator[dict[str, Any]]:
    """Returns an iterator of a checkpoint's state as JSON values, one subtask after another.

    Operator lists are last, and left out where a key is given. Expired values are shown as long as
    no batch has removed it.

    Raises:
        BadInputError: there is no state variable of that name.
        CorruptSegmentError, StorageError: a segment cannot be read; raised while it is read.
    """
    names = sorted(variable.name for variable in content.variables.values())
    if name is not None and name not in names:
        raise BadInputError(f"no state {name!r}; there are: {', '.join(names)}", job=content.job)
    return _entries(content, key, name)


def timers(
    content: CheckpointContent, key: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields a checkpoint's timers as JSON values, those of a key in order of expiry.

    Raises:
        CorruptSegmentError, StorageError: a segment cannot be read.
    """
    for state_id, shown, group in _by_key(content):
        if state_id == TIMERS and key in (None, shown):
            for entry, _ in group:
                yield {"key": shown, "expires": _time(entry.suffix)}


def _entries(
    content: CheckpointContent, key: dict[str, Any] | None, name: str | None
) -> Iterator[dict[str, Any]]:
    for state_id, shown, group in _by_key(content):
        if state_id == TIMERS:
            continue
        variable = content.variables[state_id]
        if name in (None, variable.name) and key in (None, shown):
            for index, (entry, value) in enumerate(group):
                yield _row(variable, shown, index, entry.suffix, value)
    if key is None:
        yield from _listed(content, name)


def _listed(content: CheckpointContent, name: str | None) -> Iterator[dict[str, Any]]:
    """Yields the elements of operator lists, but for those of dropped ones."""
    store = open_store(content.storage)
    for subtask, handle in sorted(content.lists.items()):
        for state_id, elements in read_lists(store, handle, job=content.job).items():
            variable = content.variables.get(state_id)
            if variable is None or name not in (None, variable.name):
                continue
            for index, element in enumerate(elements):
                value = variable.value.to_json(element)
                yield {"state": variable.name, "subtask": subtask, "index": index, "value": value}


def _by_key(
    content: CheckpointContent,
) -> Iterator[tuple[int, dict[str, Any], Iterator[Entry]]]:
    """Yields the entries of each key in each state, with the state's id and the key."""
    store = open_store(content.storage)
    known = content.variables.keys() | {TIMERS}
    # Subtask by subtask, as the state of one has to fit into memory.
    for subtask in range(content.parallelism):
        key_groups = range_of(subtask, content.parallelism, content.max_parallelism)
        folded = snapshot(store, content.handles, key_groups, job=content.job)
        parts = ((split(entry_key), value) for entry_key, value in folded.items())
        for (_, state_id, key_bytes), group in groupby(parts, key=lambda part: part[0][:3]):
            if state_id in content.hidden:
                continue
            # Shown as something else, it would hide that the metastore is not the job's.
            if state_id not in known:
                raise CorruptSegmentError(
                    f"a segment has state id {state_id}, which the job does not have",
                    job=content.job,
                    checkpoint=content.checkpoint_id,
                )
            yield state_id, content.key.to_json(key_bytes), group


def _row(
    variable: Variable, key: dict[str, Any], index: int, suffix: bytes, kept: bytes
) -> dict[str, Any]:
    row: dict[str, Any] = {"state": variable.name, "key": key}
    if variable.kind is StateKind.LIST:
        row["index"] = index
    if variable.map_key is not None:
        row["map_key"] = variable.map_key.to_json(suffix)
    if variable.has_ttl:
        value = variable.value.to_json(kept[HEADER_BYTES:])
        return row | {"value": value, "expires": _time(kept)}
    return row | {"value": variable.value.to_json(kept)}


def _time(data: bytes) -> str:
    """Returns the time that bytes start with as ISO text; as milliseconds where that has none."""
    time_ms = decode_time(data)
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


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
    # The layout reads values from before a change of the schema, too.
    value = TupleCodec(row.value_schema, name=f"state {row.name}")
    return Variable(
        name=row.name, kind=StateKind(row.kind), value=value, map_key=map_key, has_ttl=row.has_ttl
    )


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
