"""Transactions of the quarantine: what keeps an object, setting orphans aside, taking them back.

What keeps an object says one function of the metastore, `cairn.keeper_of`. It is asked when the
listing is compared with one snapshot, again under the job's lock, and by the table's own trigger.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, Connection, Text, Uuid, bindparam, text

from cairn.catalog.job.fencing import lock_job
from cairn.catalog.job.segments import read_one_instant
from cairn.catalog.maintenance.leases import renew_lease
from metastore.enums import FileStatus, QuarantineStatus


@dataclass(frozen=True, slots=True)
class Place:
    """What a sweep may set aside: an object by its path, or an unfinished upload to that path."""

    path: str
    upload_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the metastore knows of a place, as of one instant.

    `keeper` says in words what keeps it, None: nothing does. `quarantine` is of its open row.
    """

    keeper: str | None = None
    file_status: FileStatus | None = None
    quarantine: QuarantineStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFacts:
    """What a sweep knows of a job's root: the database's time, and since when it is owned.

    What is older is of another metastore's time, or of a history that was lost, unless somebody
    has confirmed that it may go.
    """

    now: datetime
    owned_since: datetime
    is_confirmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """What a sweep sets aside, as it was found; `reason` is in words."""

    quarantine_id: UUID
    place: Place
    reason: str
    size_bytes: int
    version: str
    modified_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemned:
    """An object whose delete intent is committed, and what it has to be still."""

    quarantine_id: UUID
    place: Place
    size_bytes: int
    version: str
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class Lease:
    """What a sweep writes under: its maintenance run, and the id of this process in it."""

    run_id: UUID
    holder: UUID


_IDS = bindparam("ids", type_=ARRAY(Uuid()))

_ROOT = text("""
    SELECT now() AS now, o.began_at AS owned_since, o.confirmed_at IS NOT NULL AS is_confirmed
    FROM cairn.ownerships AS o
    WHERE o.job_id = :job_id AND o.written_at IS NOT NULL
    ORDER BY o.generation DESC LIMIT 1
""")

_KNOWN = text("""
    SELECT p.path, p.upload_id, f.status AS file_status, q.status AS quarantine,
        cairn.keeper_of(:job_id, p.path, p.upload_id <> '') AS keeper
    FROM json_to_recordset(:places) AS p (path text, upload_id text)
    LEFT JOIN cairn.physical_files AS f ON f.job_id = :job_id AND f.path = p.path
    LEFT JOIN cairn.quarantined_objects AS q
        ON q.job_id = :job_id AND q.path = p.path AND q.upload_id = p.upload_id
        AND q.status IN ('QUARANTINED', 'CONDEMNED', 'RESTORED')
""")

_SET_ASIDE = text("""
    INSERT INTO cairn.quarantined_objects (
        quarantine_id, job_id, path, upload_id, reason, size_bytes, version, modified_at,
        maintenance_run_id, quarantined_until
    )
    SELECT
        o.quarantine_id, :job_id, o.path, o.upload_id, o.reason, o.size_bytes, o.version,
        o.modified_at, :run_id, now() + make_interval(secs => :quarantine_ms / 1000.0)
    FROM json_to_recordset(:orphans) AS o (
        quarantine_id uuid, path text, upload_id text, reason text, size_bytes bigint, version text,
        modified_at timestamptz
    )
    WHERE cairn.keeper_of(:job_id, o.path, o.upload_id <> '') IS NULL
    -- Set aside by another sweep meanwhile, or by this transaction, whose answer was lost.
    ON CONFLICT DO NOTHING
""")

_COUNT = text("""
    SELECT count(*) AS objects, CAST(coalesce(sum(size_bytes), 0) AS bigint) AS size_bytes
    FROM cairn.quarantined_objects WHERE job_id = :job_id AND quarantine_id = ANY (:ids)
""").bindparams(_IDS)

_RELEASE_KEPT = text("""
    UPDATE cairn.quarantined_objects SET status = 'RELEASED', released_at = now()
    WHERE job_id = :job_id
      AND status IN ('QUARANTINED', 'CONDEMNED')
      AND cairn.keeper_of(job_id, path, upload_id <> '') IS NOT NULL
""")

_DUE = text("""
    SELECT count(*) AS objects, CAST(coalesce(sum(size_bytes), 0) AS bigint) AS size_bytes
    FROM cairn.quarantined_objects
    WHERE job_id = :job_id
      AND status = 'QUARANTINED'
      AND quarantined_until <= least(now(), CAST(:as_of AS timestamptz))
""")

_CONDEMN = text("""
    UPDATE cairn.quarantined_objects SET status = 'CONDEMNED', condemned_at = now()
    WHERE quarantine_id IN (
        SELECT quarantine_id FROM cairn.quarantined_objects
        WHERE job_id = :job_id
          AND status = 'QUARANTINED'
          AND quarantined_until <= least(now(), CAST(:as_of AS timestamptz))
          AND cairn.keeper_of(job_id, path, upload_id <> '') IS NULL
        ORDER BY quarantined_until, quarantine_id
        LIMIT :most
        FOR UPDATE
    )
""")

_CONDEMNED = text("""
    SELECT quarantine_id, path, upload_id, size_bytes, version, modified_at
    FROM cairn.quarantined_objects
    WHERE job_id = :job_id
      AND status = 'CONDEMNED'
      AND (CAST(:after AS uuid) IS NULL OR quarantine_id > :after)
      -- A process that was killed may have left it long ago.
      AND cairn.keeper_of(job_id, path, upload_id <> '') IS NULL
    ORDER BY quarantine_id
    LIMIT :most
""").bindparams(bindparam("after", type_=Uuid()))

_LOCK = text("""
    SELECT quarantine_id FROM cairn.quarantined_objects
    WHERE quarantine_id = ANY (:ids) AND status = 'CONDEMNED'
    ORDER BY quarantine_id FOR UPDATE
""").bindparams(_IDS)

_GONE = text("""
    UPDATE cairn.quarantined_objects SET status = 'DELETED', deleted_at = now(), last_error = NULL
    WHERE quarantine_id = ANY (:ids)
    RETURNING size_bytes
""").bindparams(_IDS)

_RELEASE = text("""
    UPDATE cairn.quarantined_objects SET status = 'RELEASED', released_at = now()
    WHERE quarantine_id = ANY (:ids)
""").bindparams(_IDS)

_FAILED = text("""
    UPDATE cairn.quarantined_objects SET last_error = :error WHERE quarantine_id = :id
""")

_RESTORE = text("""
    WITH restored AS (
        UPDATE cairn.quarantined_objects SET status = 'RESTORED', restored_at = now()
        WHERE job_id = :job_id AND path = ANY (:paths) AND status = 'QUARANTINED'
        RETURNING path
    )
    SELECT path FROM restored
    UNION
    SELECT path FROM cairn.quarantined_objects
    WHERE job_id = :job_id AND path = ANY (:paths) AND status = 'RESTORED'
    ORDER BY path
""").bindparams(bindparam("paths", type_=ARRAY(Text())))

_OPEN = text("""
    SELECT path, upload_id, status, reason, size_bytes, modified_at, quarantined_at,
        quarantined_until, restored_at, last_error
    FROM cairn.quarantined_objects
    WHERE job_id = :job_id AND status IN ('QUARANTINED', 'CONDEMNED', 'RESTORED')
    ORDER BY quarantined_at, path
""")

_CONFIRM = text("""
    UPDATE cairn.ownerships AS o SET confirmed_at = now()
    WHERE o.job_id = :job_id
      AND o.confirmed_at IS NULL
      AND o.written_at IS NOT NULL
      AND NOT EXISTS (
        SELECT FROM cairn.ownerships AS newer
        WHERE newer.job_id = o.job_id AND newer.generation > o.generation
      )
""")

_NOTE_SKIPPED = text("""
    INSERT INTO cairn.maintenance_decisions (maintenance_run_id, job_id, decision, reason, objects)
    VALUES (
        :run_id, :job_id, 'SKIPPED',
        'something keeps it, or another sweep has set it aside, since it was found', :objects
    )
    ON CONFLICT DO NOTHING
""")


def root_facts(connection: Connection, job_id: str) -> RootFacts | None:
    """Returns what a sweep has to know of a root; None: this metastore never owned it."""
    row = connection.execute(_ROOT, {"job_id": job_id}).one_or_none()
    return None if row is None else RootFacts(**row._mapping)


def known_places(
    connection: Connection, job_id: str, places: Sequence[Place]
) -> dict[Place, Known]:
    """Returns what is known of places, in one repeatable-read snapshot: files, intents, all.

    To be read after what it is compared with was listed: a row comes before its object.
    """
    read_one_instant(connection)
    given = [{"path": one.path, "upload_id": one.upload_id} for one in places]
    rows = connection.execute(_KNOWN, {"job_id": job_id, "places": json.dumps(given)})
    return {
        Place(row.path, row.upload_id): Known(
            keeper=row.keeper,
            file_status=None if row.file_status is None else FileStatus(row.file_status),
            quarantine=None if row.quarantine is None else QuarantineStatus(row.quarantine),
        )
        for row in rows
    }


def set_aside(
    connection: Connection,
    job_id: str,
    lease: Lease,
    orphans: Sequence[Orphan],
    *,
    quarantine_ms: int,
) -> tuple[int, int]:
    """Puts orphans into quarantine that nothing keeps now, under the job's lock and the lease.

    Returns their number and bytes. Doing it again changes nothing.

    Raises:
        FencedError: this process does not hold the lease any more.
    """
    # Under the lock no intent is added in between.
    lock_job(connection, job_id, exclusive=True)
    renew_lease(connection, lease.run_id, lease.holder)
    given = [_row_of(one) for one in orphans]
    values = {"job_id": job_id, "run_id": lease.run_id, "quarantine_ms": quarantine_ms}
    connection.execute(_SET_ASIDE, {**values, "orphans": json.dumps(given)})
    ids = [one.quarantine_id for one in orphans]
    counted = connection.execute(_COUNT, {"job_id": job_id, "ids": ids}).one()
    return counted.objects, counted.size_bytes


def release_kept(connection: Connection, job_id: str) -> int:
    """Takes out of quarantine what something keeps by now; returns how many."""
    return connection.execute(_RELEASE_KEPT, {"job_id": job_id}).rowcount


def total_due(
    connection: Connection, job_id: str, *, as_of: datetime | None = None
) -> tuple[int, int]:
    """Returns the number and bytes of what was due `as_of` a moment of the database; None: now."""
    row = connection.execute(_DUE, {"job_id": job_id, "as_of": as_of}).one()
    return row.objects, row.size_bytes


def condemn_due(
    connection: Connection, job_id: str, lease: Lease, *, most: int, as_of: datetime | None = None
) -> int:
    """Commits the delete intents of up to `most` objects whose time is over and that nothing keeps.

    Under the job's lock and the lease. Returns how many. `as_of`: see `total_due`.

    Raises:
        FencedError: this process does not hold the lease any more.
    """
    lock_job(connection, job_id, exclusive=True)
    renew_lease(connection, lease.run_id, lease.holder)
    values = {"job_id": job_id, "most": most, "as_of": as_of}
    return connection.execute(_CONDEMN, values).rowcount


def condemned_after(
    connection: Connection, job_id: str, *, after: UUID | None, limit: int
) -> list[Condemned]:
    """Returns up to `limit` objects with an intent, in order of their ids, after one of them."""
    values = {"job_id": job_id, "after": after, "most": limit}
    return [
        Condemned(
            quarantine_id=row.quarantine_id,
            place=Place(row.path, row.upload_id),
            size_bytes=row.size_bytes,
            version=row.version,
            modified_at=row.modified_at,
        )
        for row in connection.execute(_CONDEMNED, values)
    ]


def record_swept(
    connection: Connection,
    *,
    gone: Iterable[UUID],
    changed: Iterable[UUID],
    failed: Mapping[UUID, str],
) -> tuple[int, int]:
    """Closes the intents of deleted objects, releases those that are others by now, notes errors.

    Returns the number and bytes of those that this call made DELETED.
    """
    gone, changed = list(gone), list(changed)
    # Under lock: of two sweeps that delete the same object one counts it.
    still_open = set(connection.scalars(_LOCK, {"ids": [*gone, *changed, *failed]}))
    connection.execute(_RELEASE, {"ids": [one for one in changed if one in still_open]})
    for one in still_open & failed.keys():
        connection.execute(_FAILED, {"id": one, "error": failed[one]})
    sizes = connection.scalars(_GONE, {"ids": [one for one in gone if one in still_open]}).all()
    return len(sizes), sum(sizes)


def note_skipped(connection: Connection, job_id: str, lease: Lease, objects: int) -> None:
    """Records how many orphans of a plan were not set aside. Again: changes nothing."""
    values = {"job_id": job_id, "run_id": lease.run_id, "objects": objects}
    connection.execute(_NOTE_SKIPPED, values)


def restore(connection: Connection, job_id: str, paths: Sequence[str]) -> list[str]:
    """Takes objects of a job out of quarantine, for good; returns the paths of all that are out.

    Those that were taken out before are among them, and those with a delete intent are not.
    """
    return list(connection.scalars(_RESTORE, {"job_id": job_id, "paths": list(paths)}))


def open_rows(connection: Connection, job_id: str) -> list[dict[str, Any]]:
    """Returns what of a job is in quarantine, is to be deleted, or was taken out; oldest first."""
    return [dict(row) for row in connection.execute(_OPEN, {"job_id": job_id}).mappings()]


def confirm_root(connection: Connection, job_id: str) -> None:
    """Records that sweeps may set aside what was below a root before this metastore had it."""
    connection.execute(_CONFIRM, {"job_id": job_id})


def _row_of(orphan: Orphan) -> dict[str, Any]:
    return {
        "quarantine_id": str(orphan.quarantine_id),
        "path": orphan.place.path,
        "upload_id": orphan.place.upload_id,
        "reason": orphan.reason,
        "size_bytes": orphan.size_bytes,
        "version": orphan.version,
        "modified_at": orphan.modified_at.isoformat(),
    }
