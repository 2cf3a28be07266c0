"""Making a job's root this metastore's own: the first time by itself, later because one says so.

In this order, each step durable before the next: a row that says which generation is meant, the
owner object of that generation, a row that says that it is there. Killed before the object, nothing
has changed, and the next try writes the same one; killed after it, the next try finds it.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from uuid import uuid4

from cairn.catalog.catalog import Catalog
from cairn.catalog.ownership import begin_ownership, end_ownership, own_facts
from cairn.errors import CorruptSegmentError
from cairn.owner import Owner, Standing
from cairn.ownership.check import Found, look_up, refusal
from cairn.ownership.objects import newest_generation, newest_manifest, read_owner, write_owner
from cairn.storage import ObjectStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """A root that a metastore has taken over, or would; `from_metastore` had it before.

    `newest_manifest` is the highest checkpoint in storage that has one, 0 without any: one that
    this metastore does not know is of a history that is given up.
    """

    job: str
    job_id: str
    generation: int
    from_metastore: str | None
    newest_manifest: int


def own_root(catalog: Catalog, store: ObjectStore, job_id: str) -> None:
    """Makes a root this metastore's own if nobody has it yet; else checks that it is.

    A metastore on another timeline is let through, with a warning: its runs are fenced by what is
    left of its rows, and nothing is deleted until `take_over`.

    Raises:
        RefusedError: it belongs to another metastore.
        StorageError: the storage is not the one that the metastore knows, or it failed.
        CorruptSegmentError, MetastoreError: see `cairn.ownership.check.look_up`.
    """
    found = look_up(catalog, store, job_id)
    if found.standing in (Standing.UNOWNED, Standing.UNFINISHED):
        generation = found.owner.generation if found.owner else 0
        _begin_and_write(catalog, store, job_id, generation)
        found = look_up(catalog, store, job_id)
    if found.standing is Standing.OTHER_TIMELINE:
        _log.warning("%s", refusal(found), extra={"job": found.facts.job})
    elif found.standing is not Standing.OWNED:
        raise refusal(found)
    _end(catalog, found)


def take_over(
    catalog: Catalog, store: ObjectStore, job_id: str, *, dry_run: bool = False
) -> TakenOver:
    """Makes a root this metastore's own, whoever has it; the others are fenced from then on.

    Ids of checkpoints continue above those of all manifests in storage. A dry run only tells.

    Raises:
        RefusedError: another metastore took it over at the same time.
        StorageError: nothing of the job is in the storage, though it was, or the storage failed.
        MetastoreError: the metastore failed; call again to finish.
    """
    facts = catalog.run(f"reading who owns {job_id}/", lambda c: own_facts(c, job_id))
    above = newest_generation(store, job_id)
    # An empty mount point: an owner object there would hide that the storage is another one.
    if above < facts.written_generation and next(store.list(f"{job_id}/"), None) is None:
        raise refusal(Found(facts, None, Standing.MISSING))
    before, newest = _owner_at(store, job_id, above), newest_manifest(store, job_id)
    generation = max(above, facts.ownership.generation if facts.ownership else 0) + 1
    if not dry_run:
        generation = _begin_and_write(catalog, store, job_id, above, newest)
        found = look_up(catalog, store, job_id)
        if found.standing is not Standing.OWNED:
            raise refusal(found)
        _end(catalog, found)
    report = TakenOver(
        job=facts.job,
        job_id=job_id,
        generation=generation,
        from_metastore=before.metastore_id if before else None,
        newest_manifest=newest,
    )
    if not dry_run:
        _log.info("root taken over", extra=asdict(report))
    return report


def _begin_and_write(
    catalog: Catalog,
    store: ObjectStore,
    job_id: str,
    above_generation: int,
    above_checkpoint: int | None = None,
) -> int:
    """Writes the object of an ownership that is new, or was begun before; returns its generation.

    Whether it counts, the caller has to read: another metastore may have been faster.
    """
    # Its id before the transaction, which may run twice: by it, it knows its first try.
    ownership_id = uuid4()
    facts = catalog.run(
        f"setting out to own {job_id}/",
        lambda connection: begin_ownership(
            connection,
            job_id,
            ownership_id,
            above_generation=above_generation,
            above_checkpoint=above_checkpoint,
        ),
    )
    mine = facts.ownership
    if mine is None:
        raise TypeError(f"{job_id}: an ownership was begun, and there is none")
    owner = Owner(
        metastore_id=facts.metastore_id,
        database_id=mine.database_id,
        timeline=mine.timeline,
        generation=mine.generation,
        ownership_id=mine.ownership_id,
        since=mine.since,
    )
    write_owner(store, job_id, owner)
    return mine.generation


def _end(catalog: Catalog, found: Found) -> None:
    mine, owner = found.facts.ownership, found.owner
    # A take-over that was begun has no object yet, whatever counts until then.
    if mine is None or mine.is_written or owner is None or owner.ownership_id != mine.ownership_id:
        return
    catalog.run(
        f"recording who owns {found.facts.job_id}/",
        lambda connection: end_ownership(connection, found.facts.job_id, mine.ownership_id),
    )


def _owner_at(store: ObjectStore, job_id: str, generation: int) -> Owner | None:
    if not generation:
        return None
    try:
        return read_owner(store, job_id, generation)
    except CorruptSegmentError:
        # It is taken over from whoever has it; the next generation can be read again.
        return None
