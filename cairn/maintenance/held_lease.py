"""Holding the lease of a maintenance run for as long as its work takes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

from cairn.catalog.catalog import Catalog
from cairn.catalog.maintenance.leased_files import LeaseRef
from cairn.catalog.maintenance.leases import LEASE_MS, release_lease, renew_lease, take_lease
from cairn.errors import CairnError, FencedError

_RENEWALS = 4
"""Of a lease in its time: some may fail."""

_log = logging.getLogger(__name__)


@contextmanager
def held_lease(
    catalog: Catalog, job_id: str, run_id: UUID, *, lease_ms: int = LEASE_MS
) -> Iterator[LeaseRef]:
    """Takes the lease of a stored plan and renews it in a thread until the end.

    A lease that is lost meanwhile is told by the next transaction under it. An exception gives it
    up at once, so that a retry, which is another holder, need not wait for its end.

    Raises:
        FencedError: another process holds it.
        RefusedError: the run is over, waits for approval, or its plan is too old.
        MetastoreError: the metastore could not be reached.
    """
    lease = LeaseRef(job_id, run_id, uuid4())
    catalog.run(
        "taking the lease of a maintenance run",
        lambda c: take_lease(c, run_id, lease.holder, lease_ms=lease_ms),
    )
    is_over = threading.Event()
    renewer = threading.Thread(target=_renew, args=(catalog, lease, lease_ms, is_over), daemon=True)
    renewer.start()
    try:
        yield lease
    except BaseException:
        is_over.set()
        _give_up(catalog, lease)
        raise
    finally:
        is_over.set()
        renewer.join()


def _renew(catalog: Catalog, lease: LeaseRef, lease_ms: int, is_over: threading.Event) -> None:
    while not is_over.wait(lease_ms / 1000 / _RENEWALS):
        try:
            catalog.run(
                "renewing the lease of a maintenance run",
                lambda c: renew_lease(c, lease.run_id, lease.holder, lease_ms=lease_ms),
            )
        except FencedError as fenced:
            if not is_over.is_set():
                _log.warning("lease lost: %s", fenced, extra={"plan": str(lease.run_id)})
            return
        except CairnError as failed:
            _log.warning("lease not renewed: %s", failed, extra={"plan": str(lease.run_id)})


def _give_up(catalog: Catalog, lease: LeaseRef) -> None:
    try:
        catalog.run(
            "giving up the lease of a maintenance run",
            lambda c: release_lease(c, lease.run_id, lease.holder),
        )
    except CairnError as failed:
        # The first error counts; the lease ends by itself.
        _log.warning("lease not given up: %s", failed, extra={"plan": str(lease.run_id)})
