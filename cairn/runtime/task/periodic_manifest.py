"""Every Nth checkpoint's manifest, written once the checkpoint is confirmed.

One task of a batch does it, after its group commit: the batch's state is whole by then, and the
only thing that waits is that task's output.
"""

from __future__ import annotations

import logging
from pathlib import Path

from cairn.catalog.job.batch_start import Parent
from cairn.catalog.savepoints.manifest_rows import newest_manifest
from cairn.errors import CorruptSegmentError, RefusedError, StoreFailedError
from cairn.runtime.executor.task_manager import TaskManager, write_whole
from cairn.savepoints.write_manifest import write_manifest
from cairn.storage.store import ObjectStore

_log = logging.getLogger(__name__)


def write_manifest_if_due(manager: TaskManager, store: ObjectStore, parent: Parent | None) -> None:
    """Writes the parent's manifest if `cairn.manifest-interval` checkpoints have none since.

    A failure is logged and costs nothing else: the next batch's parent is due then.
    """
    if parent is None:
        return
    run = manager.run
    try:
        if parent.checkpoint_id - _newest(manager) >= run.settings.manifest_interval:
            write_manifest(run.catalog, store, parent.checkpoint_id, run=run.ref)
            # In a file, as the next batch's task is another process; it saves that one a look-up.
            _note(manager, parent.checkpoint_id)
    except (StoreFailedError, RefusedError, CorruptSegmentError) as error:
        facts = {"job": run.job, "checkpoint": parent.checkpoint_id}
        _log.warning("no manifest of checkpoint %d: %s", parent.checkpoint_id, error, extra=facts)


def _newest(manager: TaskManager) -> int:
    """Returns the newest checkpoint with a manifest, as this executor or the metastore knows it."""
    try:
        return int(_noted(manager).read_bytes())
    except FileNotFoundError:
        run = manager.run
        newest = run.catalog.run(
            f"find the newest manifest of job {run.job}",
            lambda connection: newest_manifest(connection, run.job_id),
        )
        _note(manager, newest)
        return newest


def _note(manager: TaskManager, checkpoint_id: int) -> None:
    write_whole(_noted(manager), b"%d" % checkpoint_id)


def _noted(manager: TaskManager) -> Path:
    return manager.directory / "newest-manifest"
