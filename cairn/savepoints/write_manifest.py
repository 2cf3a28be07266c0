"""Pinning checkpoints and writing their manifests: intent, one object, seal."""

from __future__ import annotations

import logging
import time
import uuid
from functools import partial

from sqlalchemy import Connection

from cairn.batch_ref import RunRef
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.segments import read_one_instant
from cairn.catalog.savepoints.manifest_rows import (
    IntendedManifest,
    describe_checkpoint,
    intend_manifest,
    seal_manifest,
)
from cairn.catalog.savepoints.pins import Pinned, pin_checkpoint, remove_pins
from cairn.errors import RefusedError
from cairn.manifest import Manifest, decode, encode
from cairn.names import check_name
from cairn.ownership.take import own_root
from cairn.storage import ObjectStore, open_store
from cairn.storage.store import put_in_time
from metastore.enums import PinKind

_log = logging.getLogger(__name__)


def pin(
    catalog: Catalog,
    job_name: str,
    checkpoint_id: int | None,
    *,
    kind: PinKind,
    name: str | None = None,
    lasts_ms: int | None = None,
    dry_run: bool = False,
) -> Pinned:
    """Pins a confirmed checkpoint, the newest without an id, and writes its manifest.

    The pin expires `lasts_ms` from now, or never. It comes first: it keeps the checkpoint while its
    segments are read, which may take seconds. Killed in between, the checkpoint stays pinned,
    without a manifest; a call with its id then writes it, and so does the same call while no newer
    one is confirmed. A dry run tells what would be pinned.

    Raises:
        BadInputError: there is no such job, or a pin may not have the name.
        RefusedError: the checkpoint is not CONFIRMED, the job's root is another metastore's, or see
            `write_manifest`; it has no new pin.
        StoreFailedError: the metastore or the storage failed; call again.
    """
    check_name("a pin", name or "")
    # Before the transaction, which may run twice and must pin once.
    choice = partial(
        pin_checkpoint,
        job_name=job_name,
        pin_id=uuid.uuid4(),
        kind=kind,
        name=name,
        lasts_ms=lasts_ms,
    )
    pinned = catalog.run(
        f"pinning a checkpoint of job {job_name}",
        lambda connection: choice(connection, checkpoint_id=checkpoint_id, dry_run=dry_run),
    )
    if dry_run:
        return pinned
    store = open_store(pinned.storage)
    try:
        # A rehearsal writes nothing below a root that another metastore has.
        own_root(catalog, store, pinned.job_id)
        _write(catalog, store, pinned.job_id, pinned.checkpoint_id)
    except RefusedError:
        if pinned.is_new:
            _take_back(catalog, job_name, pinned)
        raise
    return pinned


def _take_back(catalog: Catalog, job_name: str, pinned: Pinned) -> None:
    catalog.run(
        f"removing the pin of checkpoint {pinned.checkpoint_id} of job {job_name}",
        lambda connection: remove_pins(connection, job_name, [pinned.pin_id]),
    )


def write_manifest(
    catalog: Catalog,
    store: ObjectStore,
    checkpoint_id: int,
    *,
    run: RunRef,
) -> None:
    """Writes a confirmed checkpoint's manifest on behalf of a run; one that is there stays.

    Raises:
        FencedError: a newer run has begun a batch.
        RefusedError: the checkpoint is not CONFIRMED, another object has the manifest's path, or
            a write of it was given up.
        StoreFailedError: the metastore or the storage failed; call again.
    """
    _write(catalog, store, run.job_id, checkpoint_id, run)


def _write(
    catalog: Catalog,
    store: ObjectStore,
    job_id: str,
    checkpoint_id: int,
    run: RunRef | None = None,
) -> None:
    def look_up(connection: Connection) -> Manifest:
        read_one_instant(connection)
        return describe_checkpoint(connection, job_id, checkpoint_id)

    manifest = catalog.run(f"reading the segments of checkpoint {checkpoint_id}", look_up)
    began_s = time.monotonic()
    intended = catalog.run(
        f"recording the write of checkpoint {checkpoint_id}'s manifest",
        lambda connection: intend_manifest(connection, manifest, run=run),
    )
    if intended.is_written:
        return
    data = _put(store, intended, began_s)
    catalog.run(
        f"recording the manifest {intended.path}",
        lambda connection: seal_manifest(connection, intended, data),
    )
    facts = _facts(store, intended) | {
        "size_bytes": len(data),
        "seconds": round(time.monotonic() - began_s, 3),
    }
    _log.info("manifest written", extra=facts)


def _put(store: ObjectStore, intended: IntendedManifest, began_s: float) -> bytes:
    """Returns the bytes that the manifest's object has: these, or those of an earlier try."""
    data = encode(intended.manifest)
    try:
        put_in_time(store, intended.path, [data], began_s)
    except RefusedError as error:
        found = store.get(intended.path)
        earlier = decode(found, file=intended.path)
        # Not by bytes: a schema that grew since changes them, and the checkpoint is the same.
        if not earlier.is_same_checkpoint(intended.manifest):
            raise RefusedError(
                "the manifest's object is there already, and is of another checkpoint: two "
                "metastores use this storage for one job. Use the one that the job ran with",
                job=intended.manifest.job,
                checkpoint=intended.manifest.checkpoint_id,
                file=intended.path,
            ) from error
        facts = _facts(store, intended)
        _log.warning("manifest of an earlier try taken as written", extra=facts)
        return found
    return data


def _facts(store: ObjectStore, intended: IntendedManifest) -> dict[str, object]:
    manifest = intended.manifest
    return {
        "job": manifest.job,
        "checkpoint": manifest.checkpoint_id,
        "manifest": f"{store.url}/{intended.path}",
    }
