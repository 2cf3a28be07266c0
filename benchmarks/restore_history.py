"""A history of one job, written by the code that Spark's tasks run, but without Spark.

Every batch begins, spools its changes and commits them as `cairn.runtime.task.task.run_task` does,
for all subtasks at once. Local state is brought up only where it is materialized.
"""

from __future__ import annotations

import os
import time
import uuid
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql.types import StringType, StructField, StructType

from benchmarks.processors import Latest
from benchmarks.restore_rows import (
    Shape,
    Step,
    key_names,
    last_steps,
    payloads,
    spark_hashes,
    steps,
)
from cairn.batch_ref import BatchRef
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.runs import Registration, register_run
from cairn.catalog.job.segments import segments_at
from cairn.keygroups import KeyGroupRange, subtask_of
from cairn.layout import manifest_file
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.storages import STORAGES_VARIABLE
from cairn.ownership.take import own_root
from cairn.runtime.driver.build_plan import struct
from cairn.runtime.executor.parent_state import parent_state
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.write import FULL_FROM_SHARE, materialize
from cairn.runtime.processing.task_input import InputCounts
from cairn.runtime.task.attempt import Attempt
from cairn.savepoints.write_manifest import pin
from cairn.settings import Settings
from cairn.state.codec import TupleCodec
from cairn.state.entries import entry_prefix
from cairn.state.handle import DeclaringHandle
from cairn.state.times import TimeMode
from cairn.state.view import NoState, Overlay
from cairn.storage import open_store
from metastore.enums import PinKind

MATERIALIZED, CHANGELOG = "materialized", "changelog"
"""The two histories: with materialization by the rules of the default options, and without any."""
KEY_SCHEMA = StructType([StructField("key", StringType())]).jsonValue()
QUERY = "00000000-0000-0000-0000-000000000158"
_EXECUTOR = "history"
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Kinds:
    """What a restore of the job's newest checkpoint reads: segments and bytes by kind."""

    segments: dict[str, int]
    size_bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class History:
    """A job whose batches before `next_batch` are confirmed.

    Attributes:
        digest: see `digest_of`; computed from the rows, not from what was stored.
        manifest: the URL of the newest checkpoint's manifest.
    """

    name: str
    plan: RunContext
    next_batch: int
    entries: int
    digest: int
    holds: Kinds
    manifest: str

    def batch(self) -> BatchRef:
        """Returns the batch whose parent is the newest checkpoint; it has begun already."""
        return self.plan.batch(QUERY, self.next_batch)


def digest_of(key: bytes, value: bytes) -> int:
    """Returns what an entry adds to a digest, which is the sum modulo 2^64 in any order."""
    return zlib.crc32(key) << 32 | zlib.crc32(value)


def write_history(
    name: str,
    shape: Shape,
    parallelism: int,
    directory: Path,
    metastore_url: str,
    *,
    job: str | None = None,
) -> History:
    """Writes one of the two histories below a directory, as a job of that or another name."""
    storage = directory / name / "storage"
    storage.mkdir(parents=True)
    settings = replace(
        Settings(),
        local_dir=str(directory / name / "local"),
        persist_delay_ms=0,
        file_retention_ms=0,
    )
    history = steps(shape)
    plan = (parallelism, storage.as_uri(), metastore_url, settings)
    name_of_job = job or name
    writer = HistoryWriter(name_of_job, shape, history, *plan)
    is_due = False
    for step in history:
        attempt = writer.begin(step.number)
        if is_due:
            writer.materialize(attempt)
            cleanup_job(writer.plan.catalog, name_of_job)
        writer.write(attempt, step)
        is_due = step.then_materialize and name == MATERIALIZED
    return writer.finish(len(history))


class HistoryWriter:
    """Writes the steps of a history, one batch each.

    Attributes:
        plan: the run of the job.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        history: list[Step],
        parallelism: int,
        storage: str,
        metastore_url: str,
        settings: Settings,
    ) -> None:
        self._name = name
        self._shape = shape
        self._last = last_steps(shape, history)
        self._digest = 0
        self.plan, self._value_codec, state_id = _register(
            name, parallelism, storage, metastore_url, settings
        )
        self._store = open_store(storage)
        os.environ[STORAGES_VARIABLE] = storage
        self._manager = TaskManager(self.plan, _EXECUTOR)
        key_codec = TupleCodec(KEY_SCHEMA, name="key")
        names = key_names(shape)
        key_groups = self.plan.max_parallelism
        groups = (spark_hashes(names) % key_groups).tolist()
        self._subtasks = [subtask_of(g, parallelism, key_groups) for g in groups]
        self._keys = [
            entry_prefix(group, state_id, key_codec.encode((key,)))
            for group, key in zip(groups, names, strict=True)
        ]

    def write(self, attempt: Attempt, step: Step) -> None:
        """Does one batch that has begun."""
        overlays = [Overlay(NoState()) for _ in range(self.plan.parallelism)]
        for number, payload in zip(step.keys.tolist(), payloads(self._shape, step), strict=True):
            key, value = self._keys[number], self._value_codec.encode((step.number, payload))
            overlays[self._subtasks[number]].put(key, value)
            if self._last[number] == step.number:
                self._digest = self._digest + digest_of(key, value) & _MASK
        attempt.commit(
            [
                attempt.spool(
                    attempt.open_log(subtask), overlay, InputCounts(rows=len(overlay.pending))
                )
                for subtask, overlay in enumerate(overlays)
            ]
        )

    def finish(self, batches: int) -> History:
        """Confirms the last batch by beginning the next; returns what is there."""
        self.begin(batches)
        pinned = pin(self.plan.catalog, self._name, None, kind=PinKind.SAVEPOINT)
        everything = KeyGroupRange(0, self.plan.max_parallelism)
        handles = self.plan.catalog.run(
            "reading what a checkpoint holds",
            lambda c: segments_at(c, self.plan.job_id, pinned.checkpoint_id, everything),
        )
        segments, size_bytes = Counter[str](), Counter[str]()
        for handle in handles:
            segments[handle.kind.value] += 1
            size_bytes[handle.kind.value] += handle.size_bytes
        return History(
            self._name,
            self.plan,
            batches,
            self._shape.keys,
            self._digest,
            Kinds(dict(segments), dict(size_bytes)),
            f"{pinned.storage}/{manifest_file(pinned.job_id, pinned.checkpoint_id)}",
        )

    def begin(self, number: int) -> Attempt:
        """Begins a batch, which confirms the one before it."""
        batch = self.plan.batch(QUERY, number)
        return Attempt(
            manager=self._manager,
            store=self._store,
            batch=batch,
            start=self._manager.begin(batch),
            task_attempt=number,
        )

    def materialize(self, attempt: Attempt, full_from_share: float = FULL_FROM_SHARE) -> float:
        """Materializes all subtasks as a stream does; returns what that took of the CPU, in s.

        Bringing local state up, which a batch does, is not counted.
        """
        cpu_s = 0.0
        for subtask in range(self.plan.parallelism):
            context = attempt.context_of(subtask)
            with parent_state(context, attempt.start) as reader:
                before_s = time.process_time()
                materialize(context, reader, full_from_share=full_from_share)
                cpu_s += time.process_time() - before_s
        return cpu_s


def _register(
    name: str, parallelism: int, storage: str, metastore_url: str, settings: Settings
) -> tuple[RunContext, TupleCodec, int]:
    """Registers the run as the plan of `Latest` does; returns its codec of values and state id."""
    handle = DeclaringHandle(lambda schema: struct(schema).jsonValue(), TimeMode.NONE)
    Latest().init(handle)  # type: ignore[arg-type]  # the same methods, not the same class
    [declared] = handle.declarations
    registration = Registration(
        run_id=uuid.uuid4(),
        job=name,
        storage=storage,
        parallelism=parallelism,
        max_parallelism=settings.max_parallelism,
        num_retained=settings.num_retained,
        file_retention_ms=settings.file_retention_ms,
        key_schema=KEY_SCHEMA,
        states=handle.declarations,
        time_mode=TimeMode.NONE.value,
    )
    catalog = Catalog(metastore_url)
    run = catalog.run("registering a run", lambda c: register_run(c, registration))
    own_root(catalog, open_store(storage), run.job_id)
    plan = RunContext(
        job=name,
        job_id=run.job_id,
        run_id=str(registration.run_id),
        epoch=run.epoch,
        parallelism=parallelism,
        max_parallelism=run.max_parallelism,
        storage=storage,
        catalog=catalog,
        settings=settings,
        tasks=parallelism,
    )
    state = run.states[declared.name]
    codec = TupleCodec(declared.value_schema, name=declared.name, layout=state.value_layout)
    return plan, codec, state.state_id
