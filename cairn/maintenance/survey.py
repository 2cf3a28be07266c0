"""What lies in a whole storage, root by root: whose it is, and what is beside them. Only reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import groupby

from cairn.catalog.catalog import Catalog
from cairn.catalog.jobs import names_by_root
from cairn.errors import CairnError
from cairn.ownership.objects import newest_generation, read_owner
from cairn.storage import ObjectStore, inventory_of, open_store
from cairn.storage.inventory import FoundObject, KeyRange
from cairn.storage.store import PROBE_PREFIX, TEMP_PREFIX


class Place(StrEnum):
    """What something in a storage is."""

    JOB = "a job of this metastore"
    OTHERS = "another metastore's root"
    NOBODYS = "no root of a job, or one without an owner"
    PROBE = "a write probe that was left"
    UNFINISHED = "an unfinished write"
    UNKNOWN = "nothing of Cairn's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """A directory right below a storage with all that is in it, or an object beside them.

    `job` is the name of this metastore's job, `owner` the metastore that owns a root.
    """

    name: str
    place: Place
    job: str | None = None
    owner: str | None = None
    objects: int = 1
    size_bytes: int = 0
    modified_at: datetime
    """Of the newest object."""


def survey(catalog: Catalog, storage: str) -> Iterator[Surveyed]:
    """Yields what lies in a storage, in order of names. Nothing is ever deleted by it.

    Raises:
        BadInputError: the URL has another form.
        StoreFailedError: the metastore or the storage failed.
    """
    store = open_store(storage)
    jobs = catalog.run("listing the jobs", lambda c: names_by_root(c, store.url))
    found = inventory_of(store).list_all(KeyRange(""))
    for (name, is_root), objects in groupby(found, key=_top):
        if is_root:
            yield _root(store, name, objects, jobs)
        else:
            yield from map(_beside, objects)


def _top(found: FoundObject) -> tuple[str, bool]:
    # A bucket may have an object and a directory of one name.
    name, slash, _ = found.path.partition("/")
    return name, bool(slash)


def _beside(found: FoundObject) -> Surveyed:
    place = Place.UNKNOWN
    if found.path.startswith(PROBE_PREFIX):
        place = Place.PROBE
    elif found.path.startswith(TEMP_PREFIX):
        place = Place.UNFINISHED
    return Surveyed(
        name=found.path, place=place, size_bytes=found.size_bytes, modified_at=found.modified_at
    )


def _root(
    store: ObjectStore, name: str, found: Iterator[FoundObject], jobs: dict[str, str]
) -> Surveyed:
    first = next(found)
    objects, size_bytes, modified_at = 1, first.size_bytes, first.modified_at
    for one in found:
        objects += 1
        size_bytes += one.size_bytes
        modified_at = max(modified_at, one.modified_at)
    owner = _owner(store, name)
    place = Place.JOB if name in jobs else Place.OTHERS if owner else Place.NOBODYS
    return Surveyed(
        name=name,
        place=place,
        job=jobs.get(name),
        owner=owner,
        objects=objects,
        size_bytes=size_bytes,
        modified_at=modified_at,
    )


def _owner(store: ObjectStore, name: str) -> str | None:
    """Returns the metastore that owns a root; None: nobody that can be read."""
    if not name.isprintable():
        return None
    generation = newest_generation(store, name)
    try:
        return read_owner(store, name, generation).metastore_id if generation else None
    except CairnError as error:
        if error.retryable:
            raise
        return None
