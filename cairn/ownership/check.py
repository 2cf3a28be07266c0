"""Whether this metastore owns a job's root: asked when a run is registered, and before deletes."""

from __future__ import annotations

from dataclasses import dataclass

from cairn.catalog.catalog import Catalog
from cairn.catalog.ownership import own_facts
from cairn.errors import CairnError, RefusedError, StorageError
from cairn.owner import Owner, OwnFacts, Standing, standing
from cairn.ownership.objects import newest_generation, newest_manifest, read_owner
from cairn.storage import ObjectStore

_MAY_BE_STALE = (Standing.FOREIGN, Standing.MISSING)


@dataclass(frozen=True, slots=True)
class Found:
    """What this metastore knows, what the newest owner object says, and what that means."""

    facts: OwnFacts
    owner: Owner | None
    standing: Standing


def look_up(catalog: Catalog, store: ObjectStore, job_id: str) -> Found:
    """Reads who owns a job's root.

    Raises:
        CorruptSegmentError: the newest owner object cannot be read.
        StoreFailedError: the metastore or the storage failed.
    """
    found = _look_up(catalog, store, job_id)
    # Once more: this metastore itself may have taken over between the two reads.
    return _look_up(catalog, store, job_id) if found.standing in _MAY_BE_STALE else found


def require_owner(catalog: Catalog, store: ObjectStore, job_id: str) -> None:
    """Checks that this metastore may delete below a job's root, at this moment.

    Raises:
        RefusedError: it belongs to another metastore or to none, or this one may have lost
            transactions; says what to do.
        StorageError: the storage is not the one that the metastore knows, or it failed.
        CorruptSegmentError, MetastoreError: see `look_up`.
    """
    found = look_up(catalog, store, job_id)
    if found.standing is not Standing.OWNED:
        raise refusal(found)


def require_last_owner(catalog: Catalog, store: ObjectStore, job_id: str) -> None:
    """Checks that no other metastore owns the root of a job whose ownership was given up here.

    Raises:
        RefusedError: the newest owner object is another metastore's.
        StoreFailedError, CorruptSegmentError: see `look_up`.
    """
    found = _look_up(catalog, store, job_id)
    mine = (found.facts.metastore_id, found.facts.database_id)
    if found.owner is not None and (found.owner.metastore_id, found.owner.database_id) != mine:
        raise refusal(found)


def check_before_cleanup(catalog: Catalog, store: ObjectStore, job_id: str) -> None:
    """The same, once for a cleanup, with whether storage has more than this metastore knows.

    A root that nobody has owned yet is left to `require_owner`: nothing was written there.

    Raises:
        see `require_owner`.
    """
    found = look_up(catalog, store, job_id)
    if found.standing not in (Standing.OWNED, Standing.UNOWNED):
        raise refusal(found)
    # The facts are younger than the listing, so a manifest that is written meanwhile is known.
    newest = newest_manifest(store, job_id)
    facts = catalog.run("reading the next checkpoint", lambda c: own_facts(c, job_id))
    if newest >= facts.next_checkpoint_id:
        raise RefusedError(
            f"storage {store.url} has a manifest of checkpoint {newest} of {job_id}/, an id that "
            f"this metastore has not given (the next one is {facts.next_checkpoint_id}): it was "
            "restored from a backup or a snapshot, or a copy of it is in use. "
            f"{_nothing_is_deleted(facts)}",
            job=facts.job,
        )


def refusal(found: Found) -> CairnError:
    """Returns the error that says why a root is not this metastore's, and what to do."""
    facts, owner = found.facts, found.owner
    where = f"{facts.job_id}/ in {facts.storage}"
    if found.standing is Standing.MISSING:
        return StorageError(
            f"{where} has no owner object of generation {facts.written_generation}, which this "
            "metastore has written: the storage is not mounted, was emptied, or is not the one "
            "that it was. Nothing is taken for deleted. Bring the storage back; if this is it, and "
            f"only its owner object is gone, run `cairn metastore take-over {facts.job}`",
            job=facts.job,
        )
    if owner is not None and found.standing is Standing.OTHER_TIMELINE:
        return RefusedError(
            f"metastore {facts.metastore_id} was on timeline {owner.timeline} when it took {where}"
            f", and is on timeline {facts.timeline} now: it was restored to a point in time, or "
            f"failed over, and what was committed last may be lost. {_nothing_is_deleted(facts)}",
            job=facts.job,
        )
    if owner is None or found.standing is Standing.UNFINISHED:
        return RefusedError(
            f"no metastore owns {where} yet. Start the job, or run `cairn metastore take-over "
            f"{facts.job}`, which finishes what was begun",
            job=facts.job,
        )
    this = (
        f"database {facts.database_id}, is a copy of it"
        if owner.metastore_id == facts.metastore_id
        else f"{facts.metastore_id} (database {facts.database_id}), is another one"
    )
    return RefusedError(
        f"{where} belongs to metastore {owner.metastore_id} (database {owner.database_id}), which "
        f"took it as generation {owner.generation} at {owner.since:%Y-%m-%d %H:%M:%S} UTC; this "
        f"one, {this}. Run the job and its cleanup there. If this one is to replace it, end those "
        f"first, and then run `cairn metastore take-over {facts.job}` here",
        job=facts.job,
    )


def _nothing_is_deleted(facts: OwnFacts) -> str:
    return (
        "Nothing is deleted until somebody says that it is the one that counts: compare it with "
        f"the storage (`cairn verify {facts.job}`), and then run `cairn metastore take-over "
        f"{facts.job}`"
    )


def _look_up(catalog: Catalog, store: ObjectStore, job_id: str) -> Found:
    facts = catalog.run(f"reading who owns {job_id}/", lambda c: own_facts(c, job_id))
    generation = newest_generation(store, job_id)
    owner = read_owner(store, job_id, generation) if generation else None
    return Found(facts, owner, standing(facts, owner))
