"""A job with state in storage and metastore, made without Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import Connection

from cairn.batch_ref import BatchRef, RunRef
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.acks import acknowledge
from cairn.catalog.job.begin import begin_batch
from cairn.catalog.job.files import IntendedFile, WrittenFile, intend_files
from cairn.catalog.job.group_commits import Ack
from cairn.catalog.job.materializations import install
from cairn.catalog.job.runs import Registration, register_run
from cairn.handles import SegmentHandle, SegmentSpec
from cairn.keygroups import range_of, subtask_of
from cairn.layout import task_manager_file
from cairn.ownership.take import own_root
from cairn.segments.format import encode
from cairn.state.codec import TupleCodec
from cairn.state.entries import entry_prefix, state_prefix
from cairn.state.handle import StateDeclaration
from cairn.state.timers import Timers
from cairn.state.times import TimeMode
from cairn.state.ttl import Ttl
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes, NoState, Overlay
from cairn.storage import open_store
from metastore.enums import Scope, SegmentKind
from tests.file_retention import DELETE_AT_ONCE_MS

KEY_GROUPS, SUBTASKS = 8, 2
VALUE, LIST, MAP, TTL_VALUE = 1, 2, 3, 4


def struct(**fields: str) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in fields.items()
        ],
    }


KEY = struct(user_id="long", region="string")
COUNT, WORD = struct(n="long"), struct(word="string")
STATES = [
    StateDeclaration(name="count", kind="value", value_schema=COUNT),
    StateDeclaration(name="seen", kind="list", value_schema=WORD),
    StateDeclaration(name="by_word", kind="map", value_schema=COUNT, user_key_schema=WORD),
]
WITH_TTL = [
    *STATES,
    StateDeclaration(name="session", kind="value", value_schema=WORD, ttl_ms=60_000),
]

T = TypeVar("T")
Change = tuple[int, bytes, bytes | None]


def encoded(schema: dict[str, Any], *values: Any) -> bytes:
    return TupleCodec(schema, name="test").encode(values)


def prefix(state_id: int, user_id: int, region: str) -> bytes:
    return entry_prefix(user_id % KEY_GROUPS, state_id, encoded(KEY, user_id, region))


def put_count(user_id: int, region: str, n: int) -> Change:
    return PUT, prefix(VALUE, user_id, region), encoded(COUNT, n)


def delete_count(user_id: int, region: str) -> Change:
    return DELETE, prefix(VALUE, user_id, region), None


def put_list(user_id: int, region: str, *words: str) -> list[Change]:
    start = prefix(LIST, user_id, region)
    return [
        (PUT, start + i.to_bytes(8, "big"), encoded(WORD, word)) for i, word in enumerate(words)
    ]


def clear_list(user_id: int, region: str) -> Change:
    return DELETE_PREFIX, prefix(LIST, user_id, region), None


def put_map(user_id: int, region: str, word: str, n: int) -> Change:
    return PUT, prefix(MAP, user_id, region) + encoded(WORD, word), encoded(COUNT, n)


def put_session(user_id: int, region: str, word: str, now_ms: int) -> list[Change]:
    """Sets the value with TTL, which expires a minute after `now_ms`."""
    overlay = Overlay(NoState())
    entries = overlay.under(prefix(TTL_VALUE, user_id, region))
    Ttl(overlay, 60_000, now_ms).put(entries, b"", encoded(WORD, word))
    return changes(overlay)


def register_timers(user_id: int, region: str, *expiries_ms: int) -> list[Change]:
    overlay = Overlay(NoState())
    for expiry_ms in expiries_ms:
        key = user_id % KEY_GROUPS, encoded(KEY, user_id, region)
        Timers(overlay).register(*key, expiry_ms)
    return changes(overlay)


def drop(state_id: int) -> list[Change]:
    """Removes a state variable's entries, as a run does that dropped it."""
    overlay = Overlay(NoState())
    for key_group in range(KEY_GROUPS):
        overlay.under(state_prefix(key_group, state_id)).clear()
    return changes(overlay)


def changes(overlay: Overlay) -> list[Change]:
    made = overlay.changes()
    return list(zip(made.ops, made.keys, made.values, strict=True))


@dataclass
class StatefulJob:
    """A job whose batches are written as a task would, without Spark."""

    url: str
    storage: str
    name: str = "clicks"
    num_retained: int = 2
    job_id: str = ""
    epoch: int = 0
    run_id: str = ""
    batches: int = 0
    _query_id: str = field(default_factory=lambda: str(uuid4()))

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.url)

    def register(
        self,
        states: Sequence[StateDeclaration] = STATES,
        *,
        deleted: Collection[str] = (),
        time_mode: TimeMode = TimeMode.NONE,
        delays_ms: Sequence[int] = (),
        owns_root: bool = True,
    ) -> StatefulJob:
        """Registers a run; the next batch is the first of it."""
        registration = Registration(
            run_id=uuid4(),
            job=self.name,
            storage=self.storage,
            parallelism=SUBTASKS,
            max_parallelism=KEY_GROUPS,
            num_retained=self.num_retained,
            file_retention_ms=DELETE_AT_ONCE_MS,
            key_schema=KEY,
            states=states,
            deleted_states=deleted,
            time_mode=time_mode,
            watermark_delays_ms=delays_ms,
        )
        run = self._run(lambda c: register_run(c, registration))
        if owns_root:
            own_root(self.catalog, open_store(self.storage), run.job_id)
        self.job_id, self.epoch = run.job_id, run.epoch
        self.run_id = str(registration.run_id)
        return self

    def batch(
        self,
        *changes: Change,
        acks: int = SUBTASKS,
        late_rows: int = 0,
        max_event_ms: tuple[int, ...] = (),
    ) -> int:
        """Runs one micro-batch up to `acks` of its acknowledgements; returns its checkpoint.

        Each subtask has `late_rows` rows more than it has changes.
        """
        ref = self._begin(self.batches)
        checkpoint_id = self._run(lambda c: begin_batch(c, ref)).checkpoint_id
        by_subtask: dict[int, list[Change]] = {}
        for change in changes:
            key_group = int.from_bytes(change[1][:2], "big")
            by_subtask.setdefault(subtask_of(key_group, SUBTASKS, KEY_GROUPS), []).append(change)
        for subtask in range(acks):
            of_subtask = by_subtask.get(subtask, [])
            file, segments = None, tuple[SegmentHandle, ...]()
            if of_subtask:
                file, segment = self._write(
                    ref, subtask, SegmentKind.CHANGELOG, checkpoint_id, of_subtask
                )
                segments = (segment,)
            rows = len(of_subtask) + late_rows
            ack = Ack(
                subtask=subtask,
                attempt_id=str(uuid4()),
                task_attempt=1,
                input_rows=rows,
                restore_ms=0,
                segments=segments,
                late_rows=late_rows,
                max_event_ms=max_event_ms,
            )
            self._acknowledge(ref, checkpoint_id, ack, file)
        self.batches += 1
        return checkpoint_id

    def materialize(self, subtask: int, as_of: int, *changes: Change) -> None:
        """Installs a base of one subtask; the state of checkpoint `as_of` is `changes`."""
        ref = self._begin(self.batches - 1)
        written = self._write(ref, subtask, SegmentKind.KEYED_FULL, as_of, list(changes))
        self._run(lambda c: install(c, ref, subtask, [written]))

    @property
    def run_ref(self) -> RunRef:
        """The newest registered run."""
        return RunRef(job=self.name, job_id=self.job_id, epoch=self.epoch, run_id=self.run_id)

    def _begin(self, batch_id: int) -> BatchRef:
        return BatchRef(
            job=self.name,
            job_id=self.job_id,
            epoch=self.epoch,
            run_id=self.run_id,
            query_id=self._query_id,
            batch_id=batch_id,
        )

    def _acknowledge(
        self, ref: BatchRef, checkpoint_id: int, ack: Ack, file: WrittenFile | None
    ) -> None:
        files = {segment.path: file for segment in ack.segments if file is not None}
        self._run(
            lambda c: acknowledge(
                c, ref, checkpoint_id=checkpoint_id, tm_id="tm", acks=[ack], files=files
            )
        )

    def _write(
        self, ref: BatchRef, subtask: int, kind: SegmentKind, as_of: int, changes: list[Change]
    ) -> tuple[WrittenFile, SegmentHandle]:
        ordered = sorted(changes, key=lambda change: change[1][:2])
        columns = map(list, zip(*ordered, strict=True))
        data = encode(Changes(*columns), metadata={})
        file_id = str(uuid4())
        path = task_manager_file(self.job_id, "tm", file_id)
        file = IntendedFile(file_id=file_id, path=path, scope=Scope.TASK_MANAGER)
        self._run(lambda c: intend_files(c, ref, [file]))
        open_store(self.storage).put(path, [data])
        spec = SegmentSpec.of(
            data,
            kind=kind,
            key_groups=range_of(subtask, SUBTASKS, KEY_GROUPS),
            entries=len(ordered),
            checkpoint_id=as_of,
        )
        return WrittenFile(file_id, len(data)), spec.at(path)

    def _run(self, work: Callable[[Connection], T]) -> T:
        return self.catalog.run("testing", work)
