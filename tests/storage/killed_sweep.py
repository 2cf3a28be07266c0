"""A process that sweeps a root and is killed at the nth step of what it changes.

A step is the moment before a commit from the plan on, and before and after a request that deletes:
in S3 these are not the calls of the operating system at which `tests.forked` kills.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event

from cairn.catalog.catalog import Catalog
from cairn.maintenance import sweep as module
from cairn.storage.s3 import S3Store
from cairn.storage.s3_inventory import S3Inventory
from tests.maintenance.sweeping import ANY_AGE


def sweep(url: str, job: str, number: int) -> module.SweepReport:
    """Sweeps a job, and is killed at the nth step if it has so many."""
    left = [number]

    def count(*_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    store = vars(module)["store_unless_empty"]

    def begin(*given: Any) -> Any:
        event.listen(Engine, "commit", count)
        return store(*given)

    vars(module)["store_unless_empty"] = begin
    for owner, method in (
        (S3Store, "delete_many"),
        (S3Inventory, "delete_unfinished"),
        (S3Inventory, "abort_uploads"),
    ):
        _around(owner, method, count)
    return module.sweep_job(Catalog(url), job, unsafe_min_age=ANY_AGE)


def _around(owner: type[object], method: str, count: Callable[[], None]) -> None:
    inner = getattr(owner, method)

    def counted(self: object, some: list[object]) -> object:
        if some:
            count()
        answer = inner(self, some)
        if some:
            count()
        return answer

    setattr(owner, method, counted)
