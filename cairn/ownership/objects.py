"""The owner objects of a job's root: one for each generation, the highest counts."""

from __future__ import annotations

from cairn.errors import RefusedError
from cairn.layout import generation_of, owner_directory, owner_file, split_manifest_path
from cairn.owner import Owner, decode, encode
from cairn.storage import ObjectStore


def newest_generation(store: ObjectStore, job_id: str) -> int:
    """Returns the highest generation that a root has an owner object of; 0 if there is none.

    Raises:
        StorageError: the store failed, or is not there.
    """
    found = (generation_of(stored.path) for stored in store.list(f"{owner_directory(job_id)}/"))
    return max((generation for generation in found if generation is not None), default=0)


def read_owner(store: ObjectStore, job_id: str, generation: int) -> Owner:
    """Returns what the owner object of a generation says.

    Raises:
        CorruptSegmentError, RefusedError: it cannot be read, or a newer Cairn wrote it.
        StorageError: it is not there, or the store failed.
    """
    path = owner_file(job_id, generation)
    return decode(store.get(path), file=path)


def write_owner(store: ObjectStore, job_id: str, owner: Owner) -> None:
    """Writes an owner object unless one of its generation is there, whose ever it is."""
    try:
        store.put(owner_file(job_id, owner.generation), [encode(owner)])
    except RefusedError:
        # The caller reads what counts: this one, of an earlier try, or another metastore's.
        return


def newest_manifest(store: ObjectStore, job_id: str) -> int:
    """Returns the highest checkpoint that has a manifest below a job's root; 0 if none has."""
    found = (split_manifest_path(stored.path) for stored in store.list(f"{job_id}/chk-"))
    return max((parts[2] for parts in found if parts is not None), default=0)
