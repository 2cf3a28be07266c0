"""Reading a manifest by its URL."""

from __future__ import annotations

from dataclasses import dataclass

from cairn.errors import BadInputError, RefusedError
from cairn.layout import manifest_file, split_manifest_path
from cairn.manifest import Manifest, decode
from cairn.storage import ObjectStore, normalise_url, open_store


@dataclass(frozen=True, slots=True)
class Origin:
    """A manifest, and the storage that its files are in. That of its job, or a copy of it."""

    url: str
    manifest: Manifest
    store: ObjectStore


def check_manifest_url(url: str) -> str:
    """Returns the one spelling of a manifest's URL.

    Raises:
        BadInputError: it is not the URL of a manifest.
    """
    normal = normalise_url(url)
    _split(normal)
    return normal


def read_manifest(url: str) -> Origin:
    """Returns the manifest at a URL such as `cairn savepoint` prints.

    Raises:
        BadInputError: it is not the URL of a manifest.
        CorruptSegmentError: the object is not a manifest, or damaged.
        RefusedError: it is of another checkpoint than its path says, or a newer Cairn wrote it.
        StorageError: the object is missing or cannot be read.
    """
    normal = normalise_url(url)
    storage, job_id, checkpoint_id = _split(normal)
    store = open_store(storage)
    path = manifest_file(job_id, checkpoint_id)
    return Origin(normal, decode_at(path, store.get(path)), store)


def decode_at(path: str, data: bytes) -> Manifest:
    """Returns the manifest in an object's bytes; `path` is its key below the storage.

    Raises:
        CorruptSegmentError: the bytes are not those of a manifest, or damaged.
        RefusedError: it is of another checkpoint than its path says, or a newer Cairn wrote it.
    """
    manifest = decode(data, file=path)
    # Paths in it are relative to the root, so a manifest elsewhere would name other files.
    if path != manifest_file(manifest.job_id, manifest.checkpoint_id):
        raise RefusedError(
            f"the manifest is of checkpoint {manifest.checkpoint_id} of {manifest.job_id}: "
            "somebody moved it. Keep a job's directory as it was written",
            job=manifest.job,
            checkpoint=manifest.checkpoint_id,
            file=path,
        )
    return manifest


def _split(url: str) -> tuple[str, str, int]:
    parts = split_manifest_path(url)
    if parts is None:
        raise BadInputError(
            f"{url} is not the URL of a manifest, which ends in /<job id>/chk-<n>/_metadata; "
            "`cairn pins JOB` shows those of a job"
        )
    return parts
