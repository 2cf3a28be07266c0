"""What is asked of one job's running query, and noting what was done."""

from __future__ import annotations

import logging
from dataclasses import replace

from sqlalchemy import Connection

from cairn.catalog import requests
from cairn.catalog.catalog import Catalog
from cairn.catalog.requests import Request
from cairn.errors import CairnError
from cairn.runtime.driver.job_spec import JobSpec
from cairn.savepoints.write_manifest import pin
from metastore.enums import PinKind, RequestKind, RequestStatus

_log = logging.getLogger(__name__)

_TIMEOUT_MS = 10_000


class Requested:
    """The requests to one job, as its driver answers them."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        catalog = spec.open_catalog()
        self._catalog: Catalog = replace(catalog, timeout_ms=min(catalog.timeout_ms, _TIMEOUT_MS))

    def withdraw_stop(self) -> None:
        """Withdraws a stop that was asked of an earlier start: this one is there to run."""

        def withdraw(connection: Connection) -> None:
            asked = requests.undone_request(connection, self._spec.name)
            if asked is not None and asked.kind is RequestKind.STOP:
                requests.withdraw(
                    connection, asked, "the query was started again before it was done"
                )

        self._catalog.run(f"withdrawing an old stop of job {self._spec.name}", withdraw)

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
                if not newest.is_over:
                    requests.withdraw(connection, newest, f"the query's code says {given}")
                return given
            if not newest.is_over and not requests.take(connection, newest, instead_of=given):
                return given
            return newest.parallelism

        found = self._catalog.run(f"finding the parallelism of job {self._spec.name}", find)
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
            first = requests.first_rescaled_checkpoint(connection, asked)
            if first is not None:
                requests.finish(connection, asked, RequestStatus.DONE, checkpoint_id=first)
            return None

        return self._catalog.run(f"looking for requests to job {self._spec.name}", look)

    def fail_rescale(self, error: BaseException) -> bool:
        """Notes that a rescale that was taken cannot be done; returns whether there was one."""

        def fail(connection: Connection) -> bool:
            asked = requests.undone_request(connection, self._spec.name)
            if asked is None or asked.status is not RequestStatus.TAKEN:
                return False
            requests.finish(connection, asked, RequestStatus.FAILED, message=str(error))
            return True

        return self._catalog.run(f"noting a failed rescale of job {self._spec.name}", fail)

    def confirm(self, query_id: str, batch_id: int) -> int | None:
        """Confirms the checkpoint of the last batch that Spark has committed; returns its id.

        None: the query's run is not the job's any more.
        """

        def confirm(connection: Connection) -> int | None:
            run = requests.run_of_query(connection, self._spec.name, query_id)
            if run is None:
                return None
            return requests.confirm_batch(connection, run, query_id, batch_id)

        return self._catalog.run(f"confirming batch {batch_id} of job {self._spec.name}", confirm)

    def save(self, name: str) -> int:
        """Makes a savepoint of the newest confirmed checkpoint, and returns the checkpoint's id."""
        saved = pin(
            replace(self._catalog, timeout_ms=self._spec.settings.metastore_timeout_ms),
            self._spec.name,
            None,
            kind=PinKind.SAVEPOINT,
            name=name,
            dry_run=False,
        )
        return saved.checkpoint_id

    def take(self, asked: Request) -> bool:
        """Takes a request; returns whether it is still to be done."""
        return self._catalog.run(
            f"taking a request to job {self._spec.name}",
            lambda connection: requests.take(connection, asked, instead_of=self._spec.parallelism),
        )

    def finish(
        self,
        asked: Request,
        *,
        checkpoint_id: int | None = None,
        error: CairnError | None = None,
    ) -> None:
        """Notes the result of a request that was taken."""
        status = RequestStatus.DONE if error is None else RequestStatus.FAILED
        self._catalog.run(
            f"noting the result of a request to job {self._spec.name}",
            lambda connection: requests.finish(
                connection,
                asked,
                status,
                checkpoint_id=checkpoint_id,
                message=None if error is None else str(error),
            ),
        )
