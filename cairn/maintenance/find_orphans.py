"""Finding the orphans of a root, in the order that makes it right.

First the listing, then the rows in one repeatable-read snapshot, then, before anything is set
aside, the intents in flight under the job's lock (`cairn.catalog.cleanup.quarantine`): a row comes
before its object, so what is listed and has no row by then never had one, or lost it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile

from sqlalchemy import Connection

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.quarantine import Known, Place, RootFacts, known_places
from cairn.catalog.cleanup.verification import KnownFile
from cairn.maintenance.in_parallel import in_parallel
from cairn.maintenance.merge_rows import beside, file_rows
from cairn.maintenance.orphans import Clocks, Reason, Suspect, judge, suspect_object, suspect_upload
from cairn.storage.inventory import Inventory, KeyRange, key_ranges

THREADS = 16
"""Ranges that are listed at once: a listing waits for its answers."""

_READS = threading.BoundedSemaphore(3)
"""Of pages of rows, by all threads: a process has few connections, and waiting for one may fail."""

BATCH_SUSPECTS = 1000
"""Most of what the metastore is asked for at once."""

MOST_NAMED = 20
"""Paths of an unknown kind that a report names."""

GROUPS = ("shared", "taskmanager-owned", "maintenance")
"""Directories of a root that have one of their own for each subtask, executor or run."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was found so far: objects and bytes that were listed, and of each reason.

    `matched` have a row, or say whose the root is.
    """

    listed: int = 0
    listed_bytes: int = 0
    matched: int = 0
    objects: Counter[Reason] = field(default_factory=Counter)
    size_bytes: Counter[Reason] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)
    """The first paths of an unknown kind."""

    def add(self, suspect: Suspect) -> None:
        """Counts one."""
        self.objects[suspect.reason] += 1
        self.size_bytes[suspect.reason] += suspect.size_bytes
        if suspect.reason is Reason.UNKNOWN and len(self.unknown) < MOST_NAMED:
            self.unknown.append(suspect.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Part of a listing: how much was listed, and what of it has no row."""

    listed: int
    listed_bytes: int
    matched: int
    suspects: list[Suspect]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finder:
    """Finds the orphans below a job's root."""

    catalog: Catalog
    inventory: Inventory
    job_id: str
    root: RootFacts
    clocks: Clocks

    def orphans(self, tally: Tally) -> Iterator[Suspect]:
        """Yields the orphans of the root, in no order, and counts all that is there.

        Raises:
            StoreFailedError: the metastore or the storage failed: then nothing is known to be all.
        """
        ranges = key_ranges(self.inventory, self.job_id, GROUPS)
        for batch in in_parallel(self._list, ranges, threads=THREADS):
            tally.listed += batch.listed
            tally.listed_bytes += batch.listed_bytes
            tally.matched += batch.matched
            yield from self._judged(batch.suspects, tally)
        uploads = self.inventory.unfinished_uploads(f"{self.job_id}/")
        suspects = (suspect_upload(one, self.job_id, self.clocks) for one in uploads)
        while some := list(islice(suspects, BATCH_SUSPECTS)):
            yield from self._judged(some, tally)

    def _list(self, keys: KeyRange) -> Iterator[_Batch]:
        def in_range(path: str) -> bool:
            return keys.until is None or path <= keys.until

        rows = file_rows(self._read, self.job_id, after=keys.after)
        files = takewhile(lambda file: in_range(file.path), rows)
        both = beside(files, self.inventory.list_all(keys))
        found = ((file, one) for _, file, one in both if one is not None)
        while some := list(islice(found, BATCH_SUSPECTS)):
            yield _Batch(
                listed=len(some),
                listed_bytes=sum(one.size_bytes for _, one in some),
                matched=sum(1 for file, _ in some if file is not None),
                suspects=[
                    suspect_object(one, self.job_id, self.clocks)
                    for file, one in some
                    if file is None
                ],
            )

    def _judged(self, suspects: list[Suspect], tally: Tally) -> Iterator[Suspect]:
        """Yields the orphans among suspects, by what the metastore knows since they were listed."""
        # What may be no orphan by its name or age is not asked for: no answer would count.
        asked = [Place(one.path, one.upload_id) for one in suspects if one.reason.is_orphan]
        known = self._known(asked) if asked else {}
        for suspect in suspects:
            place = Place(suspect.path, suspect.upload_id)
            reason = judge(suspect, known.get(place, Known()), self.root)
            judged = replace(suspect, reason=reason)
            tally.add(judged)
            # The row was added since the rows were read, or it is no file's.
            tally.matched += reason in (Reason.KNOWN, Reason.OWNER)
            if reason.is_orphan:
                yield judged

    def _known(self, places: list[Place]) -> dict[Place, Known]:
        what = f"reading what keeps {len(places)} objects of {self.job_id}/"
        found = self.catalog.run(what, partial(known_places, job_id=self.job_id, places=places))
        if found.keys() != set(places):
            raise TypeError(f"{what}: the metastore answered for {len(found)}")
        return found

    def _read(self, work: Callable[[Connection], list[KnownFile]]) -> list[KnownFile]:
        with _READS:
            return self.catalog.run(f"reading the files of {self.job_id}/", work)
