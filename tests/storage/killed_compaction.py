"""A process that applies a compaction's plan and is killed at the nth step of it.

A step is the moment before a commit, before and after the bytes of a copy, and on S3 before and
after the request that makes it appear. On S3 only those count that are others than in a directory.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import Engine, event

from cairn.catalog.catalog import Catalog
from cairn.maintenance.actions import apply_plan
from cairn.storage.posix import PosixStore
from cairn.storage.s3 import S3Store
from cairn.storage.s3_copy import Upload


class _Steps:
    def __init__(self, left: int) -> None:
        self._left = left

    def count(self, *_: object) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def run(
    url: str, plan_id: str, environment: Mapping[str, str], number: int, is_on_s3: bool
) -> None:
    """Applies a plan, and is killed at its nth step if it has so many."""
    os.environ.update(environment)
    steps = _Steps(number)
    if not is_on_s3:
        event.listen(Engine, "commit", steps.count)
    for store in (PosixStore, S3Store):
        _around(store, "copy", steps)
    _around(Upload, "complete", steps)
    apply_plan(Catalog(url), UUID(plan_id))


def _around(owner: type[object], method: str, steps: _Steps) -> None:
    inner = getattr(owner, method)

    def counted(*given: object) -> object:
        steps.count()
        answer = inner(*given)
        steps.count()
        return answer

    setattr(owner, method, counted)
