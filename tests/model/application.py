"""A streaming application of the model: its tasks call the transactions that real ones call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID, uuid4

from sqlalchemy import Connection

import cairn.segments.format as segment_format
from cairn.batch_ref import BatchRef, RunRef
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.acks import acknowledge
from cairn.catalog.job.begin import begin_batch
from cairn.catalog.job.files import IntendedFile, WrittenFile, intend_files
from cairn.catalog.job.group_commits import Ack
from cairn.catalog.job.materializations import (
    Materialized,
    install,
    record_end,
    record_start,
    replay_of,
)
from cairn.catalog.job.runs import Registration, register_run
from cairn.catalog.job.segments import read_one_instant, segments_at
from cairn.errors import StorageError
from cairn.handles import DirectoryHandle, SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange, range_of
from cairn.layout import (
    shared_directory,
    shared_file,
    task_manager_directory,
    task_manager_file,
)
from cairn.ownership.take import own_root
from cairn.savepoints.start_from_manifest import find_origin, restore
from cairn.segments.reader import read_segment
from cairn.segments.snapshot import snapshot
from cairn.state.entries import entry_prefix
from cairn.state.view import DELETE, PUT, Changes
from cairn.storage import open_store
from cairn.storage.store import LONGEST_HOLD_S
from metastore.enums import Scope, SegmentKind

T = TypeVar("T")
State = dict[bytes, bytes]

KEY_GROUPS = 4
EVERYTHING = KeyGroupRange(0, KEY_GROUPS)
QUERY = "query"
NUM_RETAINED = 2
RETENTION_S = 1800
"""Of files: longer than a late write may take, and than the models' backups are old."""
ALWAYS_DUE_MS = 1
"""The interval of materialization: whatever has changelog is to be folded."""


def changes_of(batch_id: int, attempt: int, groups: KeyGroupRange) -> Changes:
    """Returns what an attempt changes: keys that come back, go, and tell which attempt it was."""
    changes = Changes([], [], [])
    for group in range(groups.start, groups.end):
        rows = [
            (PUT, entry_prefix(group, 1, b"%d" % (batch_id % 5)), b"%d.%d" % (batch_id, attempt)),
            (PUT, entry_prefix(group, 1, b"last"), b"%d" % batch_id),
            (DELETE, entry_prefix(group, 1, b"%d" % ((batch_id + 2) % 5)), None),
        ]
        for op, key, value in sorted(rows, key=lambda row: row[1]):
            changes.ops.append(op)
            changes.keys.append(key)
            changes.values.append(value)
    return changes


def applied(state: State, changes: Changes) -> State:
    """Returns a state with some changes."""
    made = dict(state)
    for op, key, value in zip(changes.ops, changes.keys, changes.values, strict=True):
        if op == PUT and value is not None:
            made[key] = value
        else:
            made.pop(key, None)
    return made


@dataclass(frozen=True)
class Application:
    """One run of a job as its driver and its tasks know it; `clock` is the model's, in seconds."""

    url: str
    storage: str
    name: str
    job_id: str
    epoch: int
    run_id: str
    parallelism: int
    clock: Callable[[], float] = field(repr=False)

    @classmethod
    def start(
        cls, url: str, storage: str, name: str, parallelism: int, clock: Callable[[], float]
    ) -> Application:
        """Registers a run."""
        catalog, run_id = Catalog(url), uuid4()
        registration = _registration(run_id, name, storage, parallelism)
        run = catalog.run("registering", lambda c: register_run(c, registration))
        own_root(catalog, open_store(storage), run.job_id)
        return cls(url, storage, name, run.job_id, run.epoch, str(run_id), parallelism, clock)

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.url)

    def ref(self, batch_id: int) -> BatchRef:
        return BatchRef(
            job=self.name,
            job_id=self.job_id,
            epoch=self.epoch,
            run_id=self.run_id,
            query_id=QUERY,
            batch_id=batch_id,
        )

    def range(self, subtask: int) -> KeyGroupRange:
        return range_of(subtask, self.parallelism, KEY_GROUPS)

    def run_task(self, batch_id: int, subtasks: Sequence[int], attempt: int, hedges: bool) -> None:
        """Does what a task does: begin, intent, upload, ack; one lost write is sent again."""
        batch = self.ref(batch_id)
        start = self.catalog.run_each("begin", lambda c: begin_batch(c, batch))
        specs, data = self._segments(batch_id, subtasks, attempt, start.checkpoint_id)
        first = self._intend_changelog(batch, None)
        try:
            self._put(first, data)
            written = first
        except StorageError:
            written = None
        if written is None or hedges:
            again = self._intend_changelog(batch, first[0])
            self._put(again, data)
            written = again
        file_id, path, _ = written
        offset, acks = 0, []
        for subtask, spec, one in zip(subtasks, specs, data, strict=True):
            segment = spec.at(path, offset)
            offset += len(one)
            acks.append(
                Ack(
                    subtask=subtask,
                    attempt_id=str(uuid4()),
                    task_attempt=attempt,
                    input_rows=1,
                    restore_ms=0,
                    segments=(segment,),
                )
            )
        files = {path: WrittenFile(file_id, offset)}

        def ack(connection: Connection) -> None:
            acknowledge(
                connection,
                batch,
                checkpoint_id=start.checkpoint_id,
                tm_id="tm",
                acks=acks,
                files=files,
            )

        self.catalog.run_each("ack", ack)

    def materialize(self, batch_id: int, subtask: int, is_increment: bool) -> None:
        """Compacts a subtask's changelog, as of the parent of a batch that has begun."""
        batch, groups, made_id = self.ref(batch_id), self.range(subtask), uuid4()
        start = self.catalog.run_each("begin", lambda c: begin_batch(c, batch))
        if start.parent is None:
            return
        as_of = start.parent.checkpoint_id
        self.catalog.run("start", lambda c: record_start(c, batch, subtask, made_id))

        def look_up(connection: Connection) -> Any:
            read_one_instant(connection)
            replay = replay_of(connection, self.job_id, as_of, groups)
            return replay, segments_at(connection, self.job_id, as_of, groups)

        replay, handles = self.catalog.run("replay", look_up)
        if replay.is_based and not replay.changes:
            return
        store = open_store(self.storage)
        state = snapshot(store, handles, groups, job=self.name)
        replaced = replay.changes if is_increment and replay.is_based else None
        if replaced is None:
            keys, kind = sorted(state), SegmentKind.KEYED_FULL
        else:
            kind = SegmentKind.KEYED_INCREMENT
            keys = sorted({k for h in replaced for k in _keys(store, h, groups, self.name)})
        changes = Changes(
            [PUT if key in state else DELETE for key in keys], keys, [state.get(k) for k in keys]
        )
        spec, data = self._segment(changes, kind, groups, subtask, as_of)
        file = self._intend_base(batch, subtask, str(made_id))
        self._put(file, [data])
        handle = spec.at(file[1])
        written = [(WrittenFile(file[0], len(data)), handle)]
        self.catalog.run(
            "install",
            lambda c: install(c, batch, subtask, written, None if replaced is None else replay),
        )
        done = Materialized.of([handle])
        self.catalog.run("end", lambda c: record_end(c, made_id, done, None))

    def _segments(
        self, batch_id: int, subtasks: Sequence[int], attempt: int, checkpoint_id: int
    ) -> tuple[list[SegmentSpec], list[bytes]]:
        made = [
            self._segment(
                changes_of(batch_id, attempt, self.range(subtask)),
                SegmentKind.CHANGELOG,
                self.range(subtask),
                subtask,
                checkpoint_id,
            )
            for subtask in subtasks
        ]
        return [spec for spec, _ in made], [data for _, data in made]

    def _segment(
        self,
        changes: Changes,
        kind: SegmentKind,
        groups: KeyGroupRange,
        subtask: int,
        checkpoint_id: int,
    ) -> tuple[SegmentSpec, bytes]:
        metadata = segment_format.segment_metadata(self.name, checkpoint_id, subtask, kind)
        data = segment_format.encode(changes, metadata=metadata, use_threads=False)
        spec = SegmentSpec.of(
            data,
            kind=kind,
            key_groups=groups,
            entries=len(changes),
            checkpoint_id=checkpoint_id,
        )
        return spec, data

    def _intend_changelog(self, batch: BatchRef, retry_of: str | None) -> tuple[str, str, float]:
        file_id = str(uuid4())
        path = task_manager_file(self.job_id, f"{self.epoch}-tm", file_id)
        claim = DirectoryHandle(
            path=task_manager_directory(self.job_id, f"{self.epoch}-tm"),
            scope=Scope.TASK_MANAGER,
            tm_id=f"{self.epoch}-tm",
        )
        intended = IntendedFile(
            file_id=file_id,
            path=path,
            scope=Scope.TASK_MANAGER,
            batch_id=batch.batch_id,
            retry_of=retry_of,
        )
        self.catalog.run("intend", lambda c: intend_files(c, batch, [intended], [claim]))
        return file_id, path, self.clock()

    def _intend_base(
        self, batch: BatchRef, subtask: int, materialization_id: str
    ) -> tuple[str, str, float]:
        file_id = str(uuid4())
        path = shared_file(self.job_id, subtask, self.parallelism, file_id)
        claim = DirectoryHandle(
            path=shared_directory(self.job_id, subtask, self.parallelism),
            scope=Scope.SHARED,
            subtask=subtask,
            parallelism=self.parallelism,
        )
        intended = IntendedFile(
            file_id=file_id,
            path=path,
            scope=Scope.SHARED,
            materialization_id=materialization_id,
        )
        self.catalog.run("intend", lambda c: intend_files(c, batch, [intended], [claim]))
        return file_id, path, self.clock()

    def _put(self, intended: tuple[str, str, float], data: Sequence[bytes]) -> None:
        _, path, since = intended
        if self.clock() - since > LONGEST_HOLD_S:
            raise StorageError("held for too long since its intent, so it is not sent", file=path)
        open_store(self.storage).put(path, data)


def restore_job(url: str, storage: str, name: str, manifest_url: str) -> str:
    """Starts a job from a manifest, as building its plan does; returns its id."""
    catalog = Catalog(url)
    origin = find_origin(catalog, name, manifest_url)
    assert origin is not None, "it is restored once"
    run_id = uuid4()
    registration = replace(
        _registration(run_id, name, storage, origin.manifest.parallelism), origin=origin.manifest
    )
    run = catalog.run("registering", lambda c: register_run(c, registration))
    store = open_store(storage)
    own_root(catalog, store, run.job_id)
    ref = RunRef(job=name, job_id=run.job_id, epoch=run.epoch, run_id=str(run_id))
    restore(catalog, origin, store, run=ref)
    return run.job_id


def _registration(run_id: UUID, name: str, storage: str, parallelism: int) -> Registration:
    return Registration(
        run_id=run_id,
        job=name,
        storage=storage,
        parallelism=parallelism,
        max_parallelism=KEY_GROUPS,
        num_retained=NUM_RETAINED,
        file_retention_ms=RETENTION_S * 1000,
        materialize_interval_ms=ALWAYS_DUE_MS,
        key_schema={"fields": []},
        states=[],
    )


def _keys(store: Any, handle: SegmentHandle, groups: KeyGroupRange, job: str) -> list[bytes]:
    return [
        k for part in read_segment(store, handle, job=job, key_groups=groups) for k in part.keys
    ]
