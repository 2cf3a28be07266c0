"""What is asked of one job's running query, and noting what was done."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Connection

from cairn.catalog import requests
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.last_batch import (
    confirm_batch,
    newest_confirmed,
    require_no_other,
    run_of,
)
from cairn.catalog.requests import Request
from cairn.runtime.driver.job_spec import JobSpec
from cairn.savepoints.write_manifest import pin
from metastore.enums import PinKind, RequestKind, RequestStatus

_log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_STARTS = 3
"""Without a whole checkpoint at another parallelism; then the query has the one before again."""
_TIMEOUT_MS = 10_000


class Requested:
    """The requests to one job, as one call of `cairn.run` answers them.

    Every method raises `MetastoreError` if the metastore is away for 10 s, and `FencedError` if the
    runs of another driver have replaced this one's.
    """

    def __init__(self, spec: JobSpec, supervisor_id: UUID) -> None:
        self._spec = spec
        self._supervisor_id = supervisor_id
        catalog = spec.open_catalog()
        self._catalog: Catalog = replace(catalog, timeout_ms=min(catalog.timeout_ms, _TIMEOUT_MS))

    def withdraw_stop(self) -> None:
        """Withdraws a stop that was asked of an earlier start: this one is there to run."""

        def withdraw(connection: Connection) -> None:
            asked = requests.undone_request(connection, self._spec.name)
            if asked is not None and asked.kind is RequestKind.STOP:
                requests.withdraw(connection, asked, "the query was started again before")

        self._run("withdrawing an old stop", withdraw)

    def parallelism(self) -> int:
        """Returns the parallelism that the job is to have, and takes the request that asks for it.

        That of the newest rescale, unless the query's code has been given another one since.
        """
        given = self._spec.parallelism

        def find(connection: Connection) -> int:
            newest = requests.newest_rescale(connection, self._spec.name)
            if newest is None or newest.parallelism is None:
                return given
            if newest.instead_of not in (None, given):
                requests.overrule(connection, newest, given)
                return given
            if newest.is_over:
                return newest.parallelism
            if not requests.take(connection, newest, instead_of=given):
                return find(connection)
            if self._is_hopeless(connection, newest):
                return find(connection)
            return newest.parallelism

        found = self._run("finding the parallelism", find)
        if found != given:
            facts = {"job": self._spec.name, "parallelism": found, "instead_of": given}
            _log.info("job %s has parallelism %d", self._spec.name, found, extra=facts)
        return found

    def look(self) -> Request | None:
        """Notes a rescale that is done; returns what the query is to be ended for, if anything."""

        def look(connection: Connection) -> Request | None:
            asked = requests.undone_request(connection, self._spec.name)
            if asked is None or asked.kind is RequestKind.STOP:
                return asked
            if asked.status is RequestStatus.OPEN:
                return asked
            self._is_whole(connection, asked)
            return None

        return self._run("looking for requests", look)

    def take(self, asked: Request) -> bool:
        """Takes a request, perhaps once more; returns whether it is still to be done."""
        return self._run(
            "taking a request",
            lambda c: requests.take(c, asked, instead_of=self._spec.parallelism),
        )

    def fail_rescale(self, error: BaseException) -> bool:
        """Notes that a rescale that was taken cannot be done; returns whether there was one."""

        def fail(connection: Connection) -> bool:
            asked = requests.undone_request(connection, self._spec.name)
            if asked is None or asked.kind is not RequestKind.RESCALE:
                return False
            if asked.status is RequestStatus.OPEN or self._is_whole(connection, asked):
                return False
            return requests.finish(connection, asked, RequestStatus.FAILED, message=str(error))

        return self._run("noting a failed rescale", fail)

    def last_checkpoint(self, batch_id: int | None, query_id: str | None) -> int | None:
        """Returns the checkpoint with which the query ends, confirmed.

        `batch_id` is the last batch that Spark has committed; None: this driver knows of none, and
        it is the newest one that is confirmed. None: there is no checkpoint.

        Raises:
            RefusedError: the batch has no whole checkpoint; or no batch is known, and there is a
                whole checkpoint that is not confirmed.
        """

        def confirm(connection: Connection) -> int | None:
            if batch_id is None or query_id is None:
                return newest_confirmed(connection, self._spec.name)
            run = run_of(connection, self._spec.name, self._supervisor_id)
            return confirm_batch(connection, run, query_id, batch_id)

        return self._run("confirming the last batch", confirm)

    def save(self, name: str, checkpoint_id: int | None) -> None:
        """Makes a savepoint of a checkpoint."""
        pin(
            replace(self._catalog, timeout_ms=self._spec.settings.metastore_timeout_ms),
            self._spec.name,
            checkpoint_id,
            kind=PinKind.SAVEPOINT,
            name=name,
        )

    def finish(
        self,
        asked: Request,
        *,
        checkpoint_id: int | None = None,
        error: BaseException | None = None,
    ) -> bool:
        """Notes the result of a request that was taken; returns whether it is the result."""
        status = RequestStatus.DONE if error is None else RequestStatus.FAILED
        message = None if error is None else str(error)
        return self._run(
            "noting the result of a request",
            lambda c: requests.finish(
                c, asked, status, checkpoint_id=checkpoint_id, message=message
            ),
        )

    def _is_whole(self, connection: Connection, asked: Request) -> bool:
        """Notes that a rescale is done, if it is; returns whether."""
        first = requests.first_rescaled_checkpoint(connection, asked)
        if first is None:
            return False
        requests.finish(connection, asked, RequestStatus.DONE, checkpoint_id=first)
        return True

    def _is_hopeless(self, connection: Connection, asked: Request) -> bool:
        """Fails a rescale that was tried often enough, by whatever process; returns whether."""
        if requests.starts_at(connection, asked) < MOST_STARTS:
            return False
        if self._is_whole(connection, asked):
            return False
        message = f"{MOST_STARTS} starts at parallelism {asked.parallelism} had no whole checkpoint"
        return requests.finish(connection, asked, RequestStatus.FAILED, message=message)

    def _run(self, what: str, work: Callable[[Connection], T]) -> T:
        def alone(connection: Connection) -> T:
            require_no_other(connection, self._spec.name, self._supervisor_id)
            return work(connection)

        return self._catalog.run(f"{what} of job {self._spec.name}", alone)
