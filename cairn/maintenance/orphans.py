"""What of all that lies below a job's root is an orphan, and why the rest is kept: a pure plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from cairn.catalog.cleanup.quarantine import Known, RootFacts
from cairn.errors import RefusedError
from cairn.layout import generation_of, is_file, is_manifest, is_unfinished
from cairn.storage.inventory import FoundObject, UnfinishedUpload
from metastore.enums import FileStatus, QuarantineStatus

MIN_AGE = timedelta(hours=24)
"""Nothing younger is an orphan, whatever the rows say: the last guard where a row was lost."""

MOST_SKEW = timedelta(minutes=5)
"""Most that the clocks of the storage and of the database may differ."""


class Reason(StrEnum):
    """Why something is an orphan, or why it is kept."""

    NO_ROW = "no row knows it"
    DELETED_BEFORE = "it appeared after its row was DELETED"
    UNFINISHED = "an unfinished write"
    UPLOAD = "an unfinished multipart upload"
    OWNER = "it says whose the root is"
    UNKNOWN = "nothing of Cairn's has such a name"
    YOUNG = "younger than 24 h"
    BEFORE_OWNED = "older than this metastore's ownership of the root, which nobody has confirmed"
    KNOWN = "the metastore knows it"
    QUARANTINED = "in quarantine already"
    RESTORED = "somebody took it out of quarantine"

    @property
    def is_orphan(self) -> bool:
        """Whether it may be set aside."""
        return self in _ORPHANS


_ORPHANS = {Reason.NO_ROW, Reason.DELETED_BEFORE, Reason.UNFINISHED, Reason.UPLOAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """What was listed and may be an orphan. `age` is by the clock that says less."""

    path: str
    upload_id: str
    size_bytes: int
    version: str
    modified_at: datetime
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """What the storage and the database say what time it is, and the lowest age of an orphan."""

    storage: datetime
    database: datetime
    min_age: timedelta = MIN_AGE

    def age_of(self, moment: datetime) -> timedelta:
        """Returns how long ago a moment is, by the clock that says less."""
        return min(self.storage, self.database) - moment

    def is_old(self, moment: datetime) -> bool:
        """Tells whether what was made then is old enough to be an orphan."""
        return self.age_of(moment) >= self.min_age

    def as_of(self, moment: datetime) -> Clocks:
        """Returns clocks by which only that is old which was old at a moment of the database's."""
        since = max(self.database - moment, timedelta(0))
        return replace(self, min_age=self.min_age + since)


def clocks_of(
    storage: datetime, database: datetime, *, unsafe_min_age: timedelta | None = None
) -> Clocks:
    """Returns the clocks of a sweep. `unsafe_min_age` lowers the age of orphans: for tests only.

    Raises:
        RefusedError: they differ by more than `MOST_SKEW`: nobody knows how old anything is.
    """
    if abs(storage - database) > MOST_SKEW:
        raise RefusedError(
            f"the storage says that it is {storage:%Y-%m-%d %H:%M:%S} UTC, the database "
            f"{database:%Y-%m-%d %H:%M:%S} UTC: one of the clocks is wrong by more than "
            f"{MOST_SKEW.total_seconds() / 60:g} min, so no object's age is known and nothing was "
            "changed. Set the clock, and run the sweep again"
        )
    if unsafe_min_age is None:
        return Clocks(storage=storage, database=database)
    return Clocks(storage=storage, database=database, min_age=unsafe_min_age)


def suspect_object(found: FoundObject, job_id: str, clocks: Clocks) -> Suspect:
    """Returns what a listed object that has no row may be, by its name and age alone."""
    return Suspect(
        path=found.path,
        upload_id="",
        size_bytes=found.size_bytes,
        version=found.version,
        modified_at=found.modified_at,
        reason=_by_name(found, job_id, clocks),
    )


def suspect_upload(upload: UnfinishedUpload, job_id: str, clocks: Clocks) -> Suspect:
    """Returns what an unfinished upload may be, by its name and age alone."""
    reason = Reason.UNKNOWN
    if upload.path.startswith(f"{job_id}/") and _is_data(upload.path):
        reason = Reason.UPLOAD if clocks.is_old(upload.began_at) else Reason.YOUNG
    return Suspect(
        path=upload.path,
        upload_id=upload.upload_id,
        size_bytes=0,
        version=upload.upload_id,
        modified_at=upload.began_at,
        reason=reason,
    )


def judge(suspect: Suspect, known: Known, root: RootFacts) -> Reason:
    """Returns whether a suspect is an orphan, with what the metastore knows of it."""
    reason = suspect.reason
    if not reason.is_orphan:
        return reason
    if known.keeper is not None:
        reason = Reason.KNOWN
    elif known.quarantine is not None:
        is_out = known.quarantine is QuarantineStatus.RESTORED
        reason = Reason.RESTORED if is_out else Reason.QUARANTINED
    # By the storage's clock, which may be ahead of the database's that long.
    elif suspect.modified_at < root.owned_since + MOST_SKEW and not root.is_confirmed:
        reason = Reason.BEFORE_OWNED
    elif reason is Reason.NO_ROW and known.file_status is FileStatus.DELETED:
        reason = Reason.DELETED_BEFORE
    return reason


def _by_name(found: FoundObject, job_id: str, clocks: Clocks) -> Reason:
    if generation_of(found.path) is not None:
        return Reason.OWNER
    reason = Reason.UNKNOWN
    # A name that a job's own objects may have; of other names nobody here knows what they are.
    if found.is_plain and found.path.startswith(f"{job_id}/"):
        if is_unfinished(found.path):
            reason = Reason.UNFINISHED
        elif _is_data(found.path):
            reason = Reason.NO_ROW
    if reason.is_orphan and not clocks.is_old(found.modified_at):
        return Reason.YOUNG
    return reason


def _is_data(path: str) -> bool:
    return is_file(path) or is_manifest(path)
