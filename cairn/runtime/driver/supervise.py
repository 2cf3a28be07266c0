"""`cairn.run`: keeps a query running, and does what is asked of it while it runs.

What is asked is a row of the metastore (`cairn.catalog.requests`), and so is what was done: a
driver that is killed at any step finds there what is left to do.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy.exc import SQLAlchemyError

from cairn.catalog.requests import Request
from cairn.errors import BadInputError, CairnError, FencedError, cause_of
from cairn.runtime.driver.batch_end import await_batch_end, committed_batch
from cairn.runtime.driver.job import Job
from cairn.runtime.driver.requested import Requested
from cairn.runtime.driver.restarts import RestartPolicy, Restarts
from metastore.enums import RequestKind

_log = logging.getLogger(__name__)

POLL_S = 1
"""How often the metastore is asked for requests, in one small transaction for each job."""
_TRIES = 3
"""Of starts at another parallelism, before the query goes back to the one it had."""

Build = Callable[..., StreamingQuery]
"""Builds the plan with the jobs that it is given, starts it and returns the query."""


def run(build: Build, *jobs: Job, restart: RestartPolicy | None = None) -> None:
    """Starts a query and returns once it is over: by itself, or because it was asked to stop.

    Until then it is built and started again, in the same session and with the same
    `checkpointLocation`, after a failure, and at another parallelism when that is asked for
    (`cairn rescale JOB`). For that `build` is called again.

    Args:
        build: gets the jobs, in their order and with the parallelism that they are to have now;
            builds the plan, starts it and returns the query.
        jobs: those of the query. Their parallelism holds until another one is asked for, and again
            once it is changed here.
        restart: when a query that has failed is started again; else by `RestartPolicy()`.

    Raises:
        BadInputError: there is no job, or `build` returns no query.
        CairnError: the query failed with an error that does not pass by waiting, such as
            `FencedError`; or its first start failed.
        StreamingQueryException: it failed more often than `restart` allows.
    """
    if not jobs:
        raise BadInputError("cairn.run takes the function that builds the query, and its jobs")
    supervisor = _Supervisor(build, jobs, Restarts(policy=restart or RestartPolicy()))
    supervisor.run()


class _Supervisor:
    def __init__(self, build: Build, jobs: Sequence[Job], restarts: Restarts) -> None:
        self._build = build
        self._jobs = jobs
        self._requested = [Requested(job.spec) for job in jobs]
        self._restarts = restarts
        self._has_started = False

    def run(self) -> None:
        for requested in self._requested:
            requested.withdraw_stop()
        while True:
            try:
                if self._run_once():
                    return
            except (CairnError, PySparkException) as error:
                self._wait_after(error)

    def _run_once(self) -> bool:
        """Starts the query; returns whether it is over. False: it is to be built anew."""
        self._restarts.started()
        query = self._build(*map(_as_wanted, self._jobs, self._requested))
        if not isinstance(query, StreamingQuery):
            raise BadInputError(
                f"the function that builds the query returned {type(query).__name__}; it starts "
                "the query and returns it: `return df.writeStream.….start()`"
            )
        self._has_started = True
        try:
            while not query.awaitTermination(POLL_S):
                found = self._look()
                if found is not None:
                    return self._do(*found, query)
        finally:
            query.stop()
        self._look()
        return True

    def _look(self) -> tuple[Requested, Request] | None:
        """Returns what the query is to be ended for now."""
        for requested in self._requested:
            try:
                asked = requested.look()
            # The query does without: what is asked waits in the metastore.
            except (CairnError, SQLAlchemyError) as error:
                _log.warning("requests were not looked for: %s", error)
                continue
            if asked is not None:
                return requested, asked
        return None

    def _do(self, requested: Requested, asked: Request, query: StreamingQuery) -> bool:
        """Ends the query at a batch's end; returns whether it is over for good."""
        facts = {"job": asked.job, "kind": asked.kind.value, "parallelism": asked.parallelism}
        _log.info("job %s: %s", asked.job, asked.kind.value, extra=facts)
        if asked.kind is RequestKind.STOP and not requested.take(asked):
            return False
        await_batch_end(query)
        query.stop()
        if asked.kind is RequestKind.RESCALE:
            return False
        try:
            checkpoint_id = self._last_checkpoint(requested, asked, query)
        except CairnError as error:
            requested.finish(asked, error=error)
            return False
        requested.finish(asked, checkpoint_id=checkpoint_id)
        return True

    def _last_checkpoint(
        self, asked_of: Requested, asked: Request, query: StreamingQuery
    ) -> int | None:
        """Returns the checkpoint with which a query ends, saved for all of its jobs if asked."""
        last: dict[int, int | None] = {}
        batch_id = committed_batch(query)
        for requested in self._requested:
            if batch_id is not None:
                last[id(requested)] = requested.confirm(str(query.id), batch_id)
            if asked.savepoint is not None:
                last[id(requested)] = requested.save(asked.savepoint)
        return last.get(id(asked_of))

    def _wait_after(self, error: CairnError | PySparkException) -> None:
        """Waits until the query is to be started again; raises the error if it is not to be."""
        cause = cause_of(error)
        if not self._has_started or isinstance(cause, FencedError):
            raise error
        passes = cause is None or cause.retryable
        delay_ms = self._restarts.next_delay_ms()
        if not passes or self._restarts.in_a_row >= _TRIES:
            # Back at the parallelism that it had, it may run.
            went_back = [requested.fail_rescale(error) for requested in self._requested]
            passes = passes or any(went_back)
        if not passes or delay_ms is None:
            raise error
        facts = {"restarts": self._restarts.in_a_row, "delay_ms": delay_ms}
        _log.warning("the query failed and starts again in %d ms: %s", delay_ms, error, extra=facts)
        time.sleep(delay_ms / 1000)


def _as_wanted(job: Job, requested: Requested) -> Job:
    """Returns the job as it is to be built, with the parallelism that was asked for last."""
    wanted = copy.copy(job)
    wanted.spec = replace(job.spec, parallelism=requested.parallelism(), is_supervised=True)
    return wanted
