"""Manifests from time to time, each of a checkpoint that has just been confirmed.

One task of a batch writes it, after its group commit: the batch's state is whole by then, and the
only thing that waits is that task's output.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from cairn.catalog.job.batch_start import BatchStart
from cairn.catalog.savepoints.manifest_rows import newest_manifest
from cairn.errors import CorruptSegmentError, RefusedError, StoreFailedError
from cairn.runtime.executor.task_manager import TaskManager, write_whole
from cairn.savepoints.write_manifest import write_manifest
from cairn.storage.store import ObjectStore

_log = logging.getLogger(__name__)

LEAST_GAP_MS = 60_000
"""Between two manifests that nobody asked for."""

GAP_OF_COST = 100
"""Such a gap is at least as many times as long as writing the last manifest took: it costs 1 %."""

_SEGMENTS_A_MS = 10
"""That a manifest describes and writes, to estimate what one of an earlier run has cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    """The newest checkpoint with a manifest, 0 if there is none, and the last try at writing one.

    `tried_ms` is the database's time of the batch, in ms since 1970; `cost_ms` what it took.
    """

    checkpoint_id: int = 0
    tried_ms: int = 0
    cost_ms: int = 0


def write_manifest_if_due(manager: TaskManager, store: ObjectStore, start: BatchStart) -> None:
    """Writes the manifest of a batch's parent if `cairn.manifest-interval` says so.

    A failure is logged and costs nothing else. The next batch's parent is due then; where the
    interval is adaptive, once its gap is over.
    """
    if start.parent is None:
        return
    checkpoint_id = start.parent.checkpoint_id
    try:
        newest = _newest(manager)
        if _is_due(newest, manager.run.settings.manifest_interval, checkpoint_id, start):
            _write(manager, store, checkpoint_id, newest, start.clock.now_ms)
    except (StoreFailedError, RefusedError, CorruptSegmentError) as error:
        facts = {"job": manager.run.job, "checkpoint": checkpoint_id}
        _log.warning("no manifest of checkpoint %d: %s", checkpoint_id, error, extra=facts)


def _is_due(newest: _Newest, interval: int | None, checkpoint_id: int, start: BatchStart) -> bool:
    if interval is not None:
        return checkpoint_id - newest.checkpoint_id >= interval
    gap_ms = max(LEAST_GAP_MS, GAP_OF_COST * newest.cost_ms)
    return start.clock.now_ms - newest.tried_ms >= gap_ms


def _write(
    manager: TaskManager, store: ObjectStore, checkpoint_id: int, newest: _Newest, now_ms: int
) -> None:
    run, began_s, written = manager.run, time.monotonic(), newest.checkpoint_id
    try:
        write_manifest(run.catalog, store, checkpoint_id, run=run.ref)
        written = checkpoint_id
    finally:
        # A try that failed has cost as much.
        cost_ms = round(1000 * (time.monotonic() - began_s))
        _note(manager, _Newest(checkpoint_id=written, tried_ms=now_ms, cost_ms=cost_ms))


def _newest(manager: TaskManager) -> _Newest:
    """Returns the newest manifest, as this executor or the metastore knows it."""
    try:
        return msgspec.json.decode(_noted(manager).read_bytes(), type=_Newest)
    except FileNotFoundError:
        newest = _look_up(manager)
        # In a file, as the next batch's task is another process; it saves that one a look-up.
        _note(manager, newest)
        return newest


def _look_up(manager: TaskManager) -> _Newest:
    run = manager.run
    found = run.catalog.run(
        f"find the newest manifest of job {run.job}",
        lambda connection: newest_manifest(connection, run.job_id),
    )
    if found is None:
        return _Newest()
    cost_ms = found.segments // _SEGMENTS_A_MS
    return _Newest(checkpoint_id=found.checkpoint_id, tried_ms=found.made_ms, cost_ms=cost_ms)


def _note(manager: TaskManager, newest: _Newest) -> None:
    write_whole(_noted(manager), msgspec.json.encode(asdict(newest)))


def _noted(manager: TaskManager) -> Path:
    return manager.directory / "newest-manifest"
