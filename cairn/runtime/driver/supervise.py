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
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
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

Build = Callable[..., StreamingQuery]
"""Builds the plan with the jobs that it is given, starts it and returns the query."""

_FAILURES = (CairnError, PySparkException, Py4JError, SQLAlchemyError, OSError)
"""What starting and watching a query raises, here or in the JVM."""


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
        FencedError: the runs of another driver have replaced this one's.
        StreamingQueryException: the query failed with an error that waiting does not mend
            (`cairn.cause_of` finds it), or more often than `restart` allows.
        Exception: what `build` raises at the first start.
    """
    if not jobs:
        raise BadInputError("cairn.run takes the function that builds the query, and its jobs")
    supervisor = _Supervisor(build, jobs, Restarts(policy=restart or RestartPolicy()))
    supervisor.run()


class _Supervisor:
    def __init__(self, build: Build, jobs: Sequence[Job], restarts: Restarts) -> None:
        self._build = build
        self._jobs = jobs
        self._id = uuid4()
        self._requested = [Requested(job.spec, self._id) for job in jobs]
        self._restarts = restarts
        self._has_started = False
        # Of Spark's query, whichever start has committed it.
        self._last_batch: tuple[int | None, str | None] = None, None

    def run(self) -> None:
        for requested in self._requested:
            requested.withdraw_stop()
        while True:
            try:
                if self._is_stopped() or self._run_once():
                    return
            except _FAILURES as error:
                self._wait_after(error)

    def _run_once(self) -> bool:
        """Starts the query; returns whether it is over. False: it is to be built anew."""
        self._restarts.started()
        query = self._build(*map(self._as_wanted, self._jobs, self._requested))
        # Of Spark Connect, it is of another class.
        if not hasattr(query, "awaitTermination"):
            raise BadInputError(
                f"the function that builds the query returned {type(query).__name__}; it starts "
                "the query and returns it: `return df.writeStream.….start()`"
            )
        self._has_started = True
        try:
            found = self._watch(query)
        finally:
            self._note_last_batch(query)
            query.stop()
        if found is not None:
            return self._has_answered(*found)
        self._is_stopped()
        return True

    def _watch(self, query: StreamingQuery) -> tuple[Requested, Request] | None:
        """Returns once the query has ended: what for, or None if by itself."""
        while not query.awaitTermination(POLL_S):
            found = self._look()
            if found is not None and self._has_ended_for(found[1], query):
                return found
        self._look()
        return None

    def _is_stopped(self) -> bool:
        """Answers a stop of a query that does not run; returns whether that was all."""
        found = self._look() if self._has_started else None
        if found is None or found[1].kind is not RequestKind.STOP:
            return False
        return self._has_answered(*found)

    def _look(self) -> tuple[Requested, Request] | None:
        """Returns what the query is to be ended for now, taken if it is a stop.

        Raises:
            FencedError: another driver's runs have replaced this one's.
        """
        for requested in self._requested:
            try:
                asked = requested.look()
                if asked is None or (asked.kind is RequestKind.STOP and not requested.take(asked)):
                    continue
            except FencedError:
                raise
            # The query does without: what is asked waits in the metastore.
            except (CairnError, SQLAlchemyError) as error:
                _log.warning("requests were not looked for: %s", error)
                continue
            return requested, asked
        return None

    def _has_ended_for(self, asked: Request, query: StreamingQuery) -> bool:
        """Ends the query at a batch's end; returns whether it did.

        False: the request was withdrawn, or the metastore is away, or the query has ended.
        """
        facts = {"job": asked.job, "kind": asked.kind.value, "parallelism": asked.parallelism}
        _log.info("job %s is asked to %s", asked.job, asked.kind.value, extra=facts)
        await_batch_end(query)
        # Again, as a batch may last: it may be withdrawn by now.
        found = self._look()
        if found is None or found[1].request_id != asked.request_id or not query.isActive:
            return False
        query.stop()
        return True

    def _has_answered(self, requested: Requested, asked: Request) -> bool:
        """Does what is left of a request once the query has ended; returns whether that is all.

        False: the query is to be built anew.
        """
        if asked.kind is RequestKind.RESCALE:
            self._restarts.forget()
            return False
        try:
            last = [one.last_checkpoint(*self._last_batch) for one in self._requested]
            if asked.savepoint is not None:
                for one, checkpoint_id in zip(self._requested, last, strict=True):
                    one.save(asked.savepoint, checkpoint_id)
        except CairnError as error:
            requested.finish(asked, error=error)
            return False
        return requested.finish(asked, checkpoint_id=last[self._requested.index(requested)])

    def _note_last_batch(self, query: StreamingQuery) -> None:
        try:
            batch_id = committed_batch(query)
        except _FAILURES as error:
            _log.warning("the last batch of the query is not known: %s", error)
            return
        if batch_id is not None:
            self._last_batch = batch_id, str(query.id)

    def _wait_after(self, error: Exception) -> None:
        """Waits until the query is to be started again; raises the error if it is not to be."""
        cause = cause_of(error)
        if isinstance(cause, FencedError) or isinstance(error, Py4JNetworkError):
            raise error
        passes = cause is None or cause.retryable
        # Back at the parallelism that it had, it may run.
        went_back = not passes and self._went_back(error)
        if not self._has_started or not (passes or went_back):
            raise error
        delay_ms = self._restarts.next_delay_ms()
        if delay_ms is None:
            raise error
        facts = {"restarts": self._restarts.in_a_row, "delay_ms": delay_ms}
        _log.warning("the query failed and starts again in %d ms: %s", delay_ms, error, extra=facts)
        time.sleep(delay_ms / 1000)

    def _went_back(self, error: Exception) -> bool:
        try:
            # Of each job, not up to the first.
            went_back = [requested.fail_rescale(error) for requested in self._requested]
        except (CairnError, SQLAlchemyError) as away:
            _log.warning("whether a rescale has failed was not noted: %s", away)
            return False
        return any(went_back)

    def _as_wanted(self, job: Job, requested: Requested) -> Job:
        """Returns the job as it is to be built, with the parallelism that was asked for last."""
        wanted = copy.copy(job)
        wanted.spec = replace(job.spec, parallelism=requested.parallelism(), supervisor_id=self._id)
        return wanted
