"""Watching the runs that this driver has registered: renewing their leases, noting their ends.

By asking the session which queries are active, and not by a listener: PySpark would call that in
Python for every batch (ADR 0037). Where the session cannot be asked, the lease runs out.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy.exc import SQLAlchemyError

from cairn.batch_ref import RunRef
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.run_ends import record_run_end, renew_lease
from cairn.errors import CairnError

_log = logging.getLogger(__name__)

LOOK_S = 10.0
"""How often the queries are looked at."""
RENEW_S = 60.0
"""How often a lease is renewed, which ends after an hour (`metastore/functions/ends.sql`)."""
_SOON_S = 120.0
_TIMEOUT_MS = 10_000
_ASYNC = "AsyncProgressTrackingMicroBatchExecution"
_LEAVE_S = 5.0
"""How long a driver that exits may note the ends of its runs."""

CHECK_S = 1.0
"""How often queries are looked at that may be asynchronous, until that is known."""

ActiveQueries = Callable[[], Collection[str]]
"""Gives the ids of the queries that are active."""
AsynchronousQueries = Callable[[], dict[str, StreamingQuery]]
"""Gives those by id whose progress Spark tracks asynchronously."""

# gRPC has a ValueError for a session that is stopped meanwhile.
_NOT_ASKED = (CairnError, SQLAlchemyError, PySparkException, Py4JError, OSError, ValueError)


@dataclass(slots=True, kw_only=True)
class _Watched:
    run: RunRef
    catalog: Catalog
    active: ActiveQueries
    asynchronous: AsynchronousQueries
    is_checked: bool = False
    query_id: str | None = None
    added_s: float
    renewed_s: float = 0.0
    is_over: bool = False


class RunWatch:
    """The runs that one process watches."""

    def __init__(self) -> None:
        self._runs: dict[str, _Watched] = {}
        self._lock = threading.Lock()

    def add(
        self,
        run: RunRef,
        catalog: Catalog,
        active: ActiveQueries,
        asynchronous: AsynchronousQueries = dict,
    ) -> None:
        """Watches a run from now on, until a newer one has replaced it."""
        brief = replace(catalog, timeout_ms=min(catalog.timeout_ms, _TIMEOUT_MS))
        with self._lock:
            self._runs[run.run_id] = _Watched(
                run=run,
                catalog=brief,
                active=active,
                asynchronous=asynchronous,
                added_s=time.monotonic(),
            )

    def look(self, *, is_last: bool = False) -> None:
        """Looks at every run once: renews its lease if that is due, notes its end if it is over.

        The last time, before the process exits, a run that has not begun is over, too.
        """
        with self._lock:
            runs = self._forget_replaced()
        _each(runs, lambda one: self._look_at(one, is_last=is_last))

    def stop_asynchronous(self) -> None:
        """Stops the queries of runs that have begun whose progress Spark tracks asynchronously."""
        with self._lock:
            runs = [one for one in self._runs.values() if _may_be_asynchronous(one)]
        _each(runs, self._stop_asynchronous)

    def _stop_asynchronous(self, one: _Watched) -> None:
        found = one.asynchronous()
        # Only now: which query is the run's is known to the metastore.
        if found and one.query_id is None and not self._renew(one):
            return
        query = found.get(one.query_id or "")
        if query is not None:
            _log.error(
                "query %s of job %s is stopped: asyncProgressTrackingEnabled is true, so Spark's "
                "log lacks batches whose state counts, and no restart could continue. Start it "
                "without; where that is refused, with a new checkpointLocation and a new job name",
                one.query_id,
                one.run.job,
                extra={"job": one.run.job, "epoch": one.run.epoch},
            )
            query.stop()
        one.is_checked = one.query_id is not None

    def _forget_replaced(self) -> list[_Watched]:
        """Returns the runs, without those that are over and that a newer one here has replaced.

        Else a process that starts a query again and again would ask for each of its runs.
        """
        runs = list(self._runs.values())
        begun: dict[str, int] = {}
        for one in runs:
            if one.query_id is not None:
                begun[one.run.job_id] = max(one.run.epoch, begun.get(one.run.job_id, 0))
        kept = [
            one
            for one in runs
            if not (one.is_over and one.run.epoch < begun.get(one.run.job_id, 0))
        ]
        self._runs = {one.run.run_id: one for one in kept}
        return kept

    def _look_at(self, one: _Watched, *, is_last: bool) -> None:
        is_asked = one.query_id is None and not one.is_over and (is_last or _is_due(one))
        if is_asked and not self._renew(one):
            return
        # Asked after the query's id: so a query that is not active has been, and is over. And
        # before the lease is renewed: so that of a session that is gone runs out.
        is_active = one.query_id is not None and one.query_id in one.active()
        if is_active and (one.is_over or _is_due(one)):
            one.is_checked = one.is_checked and not one.is_over
            self._renew(one)
        elif not is_active and not one.is_over and (is_last or one.query_id is not None):
            one.catalog.run(
                f"record the end of run {one.run.epoch} of job {one.run.job}",
                lambda connection: record_run_end(connection, one.run),
            )
            one.is_over = True
            facts = {"job": one.run.job, "epoch": one.run.epoch}
            _log.info("run %d of job %s has ended", one.run.epoch, one.run.job, extra=facts)

    def _renew(self, one: _Watched) -> bool:
        """Returns whether the run may write still."""
        lease = one.catalog.run(
            f"renew the lease of run {one.run.epoch} of job {one.run.job}",
            lambda connection: renew_lease(connection, one.run),
        )
        if lease is None:
            with self._lock:
                self._runs.pop(one.run.run_id, None)
            return False
        one.query_id, one.renewed_s, one.is_over = lease.query_id, time.monotonic(), False
        return True


def _each(runs: Iterable[_Watched], work: Callable[[_Watched], None]) -> None:
    for one in runs:
        try:
            work(one)
        # Left to the next look, or else to the lease: a query must not fail by being watched.
        except _NOT_ASKED as error:
            _log.debug("run %d of job %s: %s", one.run.epoch, one.run.job, error)


def _begins_soon(one: _Watched) -> bool:
    return one.query_id is None and time.monotonic() - one.added_s < _SOON_S


def _is_due(one: _Watched) -> bool:
    # Until it has begun, its query is not known, and so not its end. Most plans begin soon; those
    # that were only built, perhaps many, are not asked for so often.
    return _begins_soon(one) or time.monotonic() - one.renewed_s > RENEW_S


def _may_be_asynchronous(one: _Watched) -> bool:
    has_begun = one.query_id is not None and not one.is_over
    return not one.is_checked and (has_begun or _begins_soon(one))


_watch = RunWatch()
_starting = threading.Lock()
_threads: list[threading.Thread] = []
_leaving, _left = threading.Event(), threading.Event()


def watch_run(run: RunRef, catalog: Catalog, session: SparkSession) -> None:
    """Watches a run that was just registered, in a thread of its own for all runs."""
    _watch.add(
        run,
        catalog,
        lambda: {str(query.id) for query in session.streams.active},
        lambda: _asynchronous(session),
    )
    with _starting:
        if not _threads:
            atexit.register(_leave)
        if not any(thread.is_alive() for thread in _threads):
            thread = threading.Thread(target=_look_to_the_end, name="cairn-run-watch", daemon=True)
            _threads.append(thread)
            thread.start()


def note_ends() -> None:
    """Notes the ends of this process's runs, as at its exit; for who stops the metastore before.

    A run whose end is noted asks the metastore nothing more, unless its query is started again.
    """
    _watch.look(is_last=True)


def _asynchronous(session: SparkSession) -> dict[str, StreamingQuery]:
    """Returns the queries whose progress is asynchronous; Spark Connect does not show it."""
    if not hasattr(session, "_jsparkSession"):
        return {}
    return {str(query.id): query for query in session.streams.active if _is_async(query)}


def _is_async(query: Any) -> bool:  # noqa: ANN401 - with what PySpark keeps to itself
    execution = query._jsq.streamingQuery()
    return bool(execution.getClass().getSimpleName() == _ASYNC)


def _look_to_the_end() -> None:
    looked_s = time.monotonic()
    while not _leaving.wait(CHECK_S):
        _watch.stop_asynchronous()
        if time.monotonic() - looked_s >= LOOK_S:
            _watch.look()
            looked_s = time.monotonic()
    _watch.look(is_last=True)
    _left.set()


def _leave() -> None:
    """Has the thread look once more, but does not wait for a session that does not answer.

    Spark Connect asks a server that is gone for ten minutes. And a process that is exiting starts
    no thread.
    """
    _leaving.set()
    if any(thread.is_alive() for thread in _threads):
        _left.wait(_LEAVE_S)
