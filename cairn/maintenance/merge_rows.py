"""A listing beside the rows of a job's files, both in order of paths: one pass, bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import merge
from itertools import groupby
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from cairn.catalog.cleanup.verification import KnownFile, files_after

PAGE_FILES = 1000
"""Rows that are in memory at once."""

Read = Callable[[Callable[[Connection], list[KnownFile]]], list[KnownFile]]
"""Runs a transaction that reads rows, and returns them."""


class Listed(Protocol):
    """What a listing shows."""

    @property
    def path(self) -> str:
        """Its path below the job's storage."""
        ...


T = TypeVar("T", bound=Listed)


def file_rows(read: Read, job_id: str, *, after: str = "") -> Iterator[KnownFile]:
    """Yields the rows of a job's files that are not DELETED, in order of paths after one."""
    while page := read(partial(files_after, job_id=job_id, after=after, limit=PAGE_FILES)):
        yield from page
        after = page[-1].path


def beside(
    files: Iterable[KnownFile], objects: Iterable[T]
) -> Iterator[tuple[str, KnownFile | None, T | None]]:
    """Yields each path that a row or an object has, with both; None: there is none.

    Neither is locked. So what does not fit is only suspected, and has to be looked at again.
    """
    both: Iterator[KnownFile | T] = merge(files, objects, key=_path)
    for path, pair in groupby(both, key=_path):
        file, found = None, None
        for one in pair:
            if isinstance(one, KnownFile):
                file = one
            else:
                found = one
        yield path, file, found


def _path(one: Listed) -> str:
    return one.path
