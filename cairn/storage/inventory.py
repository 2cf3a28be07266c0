"""All that lies in a storage, unfinished writes too: what the orphan sweep reads and deletes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Protocol

from cairn.errors import BadInputError
from cairn.storage.store import TEMP_PREFIX, check_path

MOST_RANGES = 64
"""Of directories of one kind, so that very many do not cost a request for each of them."""

_NAMES_START_WITH = "0123456789abcdef"
"""As the ids of files do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject:
    """Whatever has a name in storage, as of one moment.

    `modified_at` is in UTC and by the storage's clock, in a directory the later one of its change
    and its last rename or link. `version` is another one once its bytes may be. `is_plain` is false
    for what is no object of any kind, such as a link.
    """

    path: str
    size_bytes: int
    modified_at: datetime
    version: str
    is_plain: bool = True


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A multipart upload of S3 that was neither completed nor aborted."""

    path: str
    upload_id: str
    began_at: datetime


@dataclass(frozen=True, slots=True)
class EmptyDirectory:
    """A directory without any entry; `modified_at` is when it got its last change."""

    path: str
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The paths that start with `prefix`, are above `after` and at most `until` (None: all)."""

    prefix: str
    after: str = ""
    until: str | None = None

    def holds(self, path: str) -> bool:
        """Tells whether a path is in the range."""
        in_time = self.until is None or path <= self.until
        return path.startswith(self.prefix) and self.after < path and in_time

    def may_hold_below(self, directory: str) -> bool:
        """Tells whether a path below a directory, given with its slash, may be in the range."""
        if self.until is not None and directory > self.until:
            return False
        return directory > self.after or self.after.startswith(directory)


class Inventory(Protocol):
    """What a storage has besides objects, and by ranges. Errors are those of `ObjectStore`."""

    @property
    def splits_directories(self) -> bool:
        """Whether a part of a directory can be listed without reading all of it."""
        ...

    def directories(self, path: str) -> list[str]:
        """Returns the paths of the directories right below one, in order."""
        ...

    def list_all(self, keys: KeyRange) -> Iterator[FoundObject]:
        """Yields all that a range has, page by page, sorted by path: unfinished writes, too."""
        ...

    def find(self, path: str) -> FoundObject | None:
        """Returns what has a path now, as `list_all` would; None: nothing has.

        Raises:
            StorageError, BadInputError: the store itself is not there, too.
        """
        ...

    def empty_directories(self, path: str) -> Iterator[EmptyDirectory]:
        """Yields the directories below one that have no entry at all; a bucket has none."""
        ...

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Yields the unfinished multipart uploads whose path starts with `prefix`."""
        ...

    def now(self) -> datetime:
        """Returns the time by the storage's own clock, by which objects are modified, in UTC."""
        ...

    def delete_unfinished(self, paths: Sequence[str]) -> dict[str, str]:
        """Deletes unfinished writes by their paths; only the deleter may call this.

        Returns errors by path; a missing one counts as deleted.

        Raises:
            BadInputError: a path is not of an unfinished write; nothing was deleted.
        """
        ...

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> dict[str, str]:
        """Aborts multipart uploads, whose parts are deleted; only the deleter may call this.

        Returns errors by upload id; one that is gone counts as aborted.
        """
        ...


def key_ranges(inventory: Inventory, path: str, groups: Collection[str] = ()) -> list[KeyRange]:
    """Returns ranges that together are all paths below a directory, for as many threads.

    They follow from the directories there, and from those below the ones named in `groups`, each of
    which adds up to `MOST_RANGES`. Names that appear later are in a range, too.
    """
    prefix, splits = f"{path}/", inventory.splits_directories
    top = inventory.directories(path)
    grouped = [one for one in top if one.removeprefix(prefix) in groups]
    bounds = {f"{one}/" for one in grouped}
    bounds.update(_bounds([one for one in top if one not in grouped], splits=splits))
    # Each by itself: there may be hundreds of subtasks beside one executor, which wrote most files.
    for directory in grouped:
        bounds.update(_bounds(inventory.directories(directory), splits=splits))
    limits: list[str | None] = [*sorted(bounds), None]
    starts = pairwise(["", *limits])
    return [KeyRange(prefix, after or "", until) for after, until in starts]


def _bounds(directories: Sequence[str], *, splits: bool) -> list[str]:
    """Returns where ranges begin in directories of one kind: at `MOST_RANGES` places at most."""
    # Rows are read by ranges, too, and nobody can ask for those after any name there is.
    bounds = [f"{one}/" for one in directories if one.isprintable()]
    # Of a list that is too long, some at equal distances.
    bounds = bounds[:: -(-len(bounds) // MOST_RANGES) or 1]
    parts = min(MOST_RANGES // len(bounds), len(_NAMES_START_WITH)) if splits and bounds else 1
    step = -(-len(_NAMES_START_WITH) // parts)
    return bounds + [one + start for one in bounds for start in _NAMES_START_WITH[step::step]]


def check_unfinished(path: str) -> None:
    """Raises BadInputError unless a path is of an unfinished write below the store's URL."""
    directory, _, name = path.rpartition("/")
    if directory:
        check_path(directory)
    if not name.startswith(TEMP_PREFIX) or not path.isprintable():
        raise BadInputError(f"{path!r} is no path of an unfinished write, {TEMP_PREFIX}*")
