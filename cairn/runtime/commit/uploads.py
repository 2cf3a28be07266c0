"""Writing one physical file: intents, requests in threads, the first that succeeds wins (FLIP-158).

Every request writes a file of its own, under a write intent of its own, so nothing is overwritten
and SQL knows every object. The files of requests that lose get no segment, and cleanup takes them
once their batch is over, as it takes those of a process that died here.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import TypeVar

import msgspec

from cairn.batch_ref import BatchRef
from cairn.catalog.job.files import IntendedFile, Uploaded, WrittenFile, intend_files
from cairn.catalog.job.upload_stats import UploadStats
from cairn.errors import CairnError, OutcomeUnknownError, StoreFailedError
from cairn.handles import DirectoryHandle
from cairn.runtime.commit.in_flight import Waited, in_flight
from cairn.runtime.commit.upload_policy import History, Kind, SentRequest, next_step
from cairn.runtime.executor.task_manager import TaskManager, write_whole
from cairn.storage.store import ObjectStore, put_in_time
from metastore.enums import Scope

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whose file is written, and where: `path_of` gives the path for a file id.

    A changelog is for the batch, whose acks alone may seal its file. What is not is of a
    materialization, and has limits in flight and a hedge budget of its own, so that batches do not
    wait for it.
    """

    batch: BatchRef
    scope: Scope
    path_of: Callable[[str], str]
    is_changelog: bool
    materialization_id: str | None = None

    @property
    def pool(self) -> str:
        """Names the uploads that share limits and a history."""
        return "changelog" if self.is_changelog else "bases"


@dataclass(frozen=True, slots=True)
class Intent:
    """A write intent that is recorded; `began_s` is from before, on the monotonic clock."""

    file_id: str
    path: str
    began_s: float


def upload(
    manager: TaskManager,
    store: ObjectStore,
    target: Target,
    chunks: Sequence[bytes],
    first: Intent | None = None,
) -> Uploaded:
    """Writes `chunks` as one new object and returns it; records the write intents, too.

    `first` is the intent of the first request, if it is recorded already. Waits while the executor
    has as much in flight as it may.

    Raises:
        StoreFailedError: every attempt failed, with the last error. It may be called again.
        FencedError: a newer run has begun a batch.
        BadInputError, RefusedError: see `ObjectStore.put`.
    """
    with in_flight(manager, target.pool, sum(map(len, chunks))) as waited:
        intent = first or intend(manager, [target])[0]
        return _Upload(manager, store, target, chunks, intent).run(waited)


def intend(
    manager: TaskManager,
    targets: Sequence[Target],
    retry_of: str | None = None,
    claims: Sequence[DirectoryHandle] = (),
) -> list[Intent]:
    """Records the intents of a new file for each target of a batch, in one transaction.

    `retry_of` is the file of the upload's first request, `claims` are directories to claim.

    Raises:
        FencedError: a newer run has begun a batch.
    """
    began_s, batch = time.monotonic(), targets[0].batch
    ids = [str(uuid.uuid4()) for _ in targets]
    files = [
        IntendedFile(
            file_id=file_id,
            path=target.path_of(file_id),
            scope=target.scope,
            batch_id=batch.batch_id if target.is_changelog else None,
            retry_of=retry_of,
            materialization_id=target.materialization_id,
        )
        for file_id, target in zip(ids, targets, strict=True)
    ]
    manager.run.catalog.run_each(
        f"record the write of {files[0].path}",
        lambda connection: intend_files(connection, batch, files, claims),
    )
    return [Intent(file.file_id, file.path, began_s) for file in files]


@dataclass(frozen=True, slots=True)
class _Answer:
    number: int
    at_ms: float
    error: CairnError | None


class _Upload:
    def __init__(
        self,
        manager: TaskManager,
        store: ObjectStore,
        target: Target,
        chunks: Sequence[bytes],
        first: Intent,
    ) -> None:
        self._manager, self._store, self._target = manager, store, target
        self._chunks, self._size_bytes = chunks, sum(map(len, chunks))
        self._first, self._history = first, _History(manager, target.pool)
        self._intents: list[Intent] = []
        self._requests: list[SentRequest] = []
        self._answers: SimpleQueue[_Answer] = SimpleQueue()

    def run(self, waited: Waited) -> Uploaded:
        limits = self._history.read().limits(self._manager.run.settings, self._size_bytes)
        # A file system is one device: writing the bytes twice would only slow the first write.
        if not self._store.sends_requests:
            limits = replace(limits, hedge_after_ms=math.inf, timeout_ms=math.inf)
        errors: list[StoreFailedError] = []
        while (step := next_step(limits, self._requests, _now_ms())) is not None:
            # An answer that has arrived is worth more than another request.
            if isinstance(step, Kind) and self._answers.empty():
                if step is Kind.HEDGE and not self._history.change(History.take_hedge):
                    limits = replace(limits, hedge_after_ms=math.inf)
                else:
                    self._send(step)
            elif (answer := self._wait(step)) is not None:
                if answer.error is None:
                    return self._won(answer, waited)
                # Fenced or refused: so would be the next request.
                if not isinstance(answer.error, StoreFailedError):
                    raise answer.error
                errors.append(answer.error)
                facts = {"job": self._target.batch.job, "error": str(answer.error)}
                _log.warning("upload request failed", extra=facts)
                request = self._requests[answer.number]
                self._requests[answer.number] = replace(request, failed_ms=answer.at_ms)
        self._history.change(History.count_failure)
        raise errors[-1]

    def _send(self, kind: Kind) -> None:
        """Sends a request under an intent of its own, unless an answer has arrived meanwhile."""
        is_first = kind is Kind.FIRST
        intent = self._first
        if not is_first:
            [intent] = intend(self._manager, [self._target], self._first.file_id)
            facts = {"job": self._target.batch.job, "file": intent.path, "first": self._first.path}
            _log.warning("upload sends a %s", kind, extra=facts | {"size_bytes": self._size_bytes})
        # One arrived during the transaction. The intent stays unused, and cleanup takes it.
        if not self._answers.empty():
            return
        number = len(self._requests)
        self._intents.append(intent)
        self._requests.append(SentRequest(kind, _now_ms()))
        if self._store.sends_requests:
            # A daemon: a request that hangs must not keep the process from ending.
            threading.Thread(target=self._put, args=(number, intent), daemon=True).start()
        else:
            self._put(number, intent)

    def _put(self, number: int, intent: Intent) -> None:
        # Until the write returns: whatever ends this thread, the waiting one gets an answer.
        error: CairnError | None = OutcomeUnknownError("its thread has died", file=intent.path)
        try:
            put_in_time(self._store, intent.path, self._chunks, intent.began_s)
            error = None
        except CairnError as failure:
            error = failure
        finally:
            self._answers.put(_Answer(number, _now_ms(), error))

    def _wait(self, step: Kind | float) -> _Answer | None:
        """Returns the next answer; waits for it until the time of the next step, if it has one."""
        if isinstance(step, Kind) or step == math.inf:
            return self._answers.get()
        try:
            return self._answers.get(timeout=max(0.0, step - _now_ms()) / 1000)
        except Empty:
            return None

    def _won(self, winner: _Answer, waited: Waited) -> Uploaded:
        kinds = [request.kind for request in self._requests]
        stats = UploadStats(
            segments=len(self._chunks),
            size_bytes=self._size_bytes,
            requests=len(kinds),
            retries=kinds.count(Kind.RETRY),
            hedges=kinds.count(Kind.HEDGE),
            hedge_wins=int(kinds[winner.number] is Kind.HEDGE),
            failed_attempts=sum(request.failed_ms is not None for request in self._requests),
            winning_attempt=winner.number + 1,
            failed_uploads=self._remember(winner),
            queue_size=waited.others,
            wait_ms=waited.wait_ms,
            upload_ms=round(winner.at_ms - self._requests[0].sent_ms),
            longest_request_ms=round(
                max((r.failed_ms or winner.at_ms) - r.sent_ms for r in self._requests)
            ),
        )
        intent = self._intents[winner.number]
        return Uploaded(WrittenFile(intent.file_id, self._size_bytes), intent.path, stats)

    def _remember(self, winner: _Answer) -> int:
        """Notes the upload for later ones; returns the failed ones that no row counts yet."""
        first, won = self._requests[0], self._requests[winner.number]
        latency_ms = winner.at_ms - (first if first.failed_ms is None else won).sent_ms

        def change(history: History) -> int:
            if self._store.sends_requests:
                history.observe(self._size_bytes, latency_ms)
            return history.take_failures()

        if self._store.sends_requests or self._history.read().failed_uploads:
            return self._history.change(change)
        return 0


class _History:
    """Statistics of the executor's uploads, in a file: its tasks are processes that end."""

    def __init__(self, manager: TaskManager, pool: str) -> None:
        self._manager = manager
        self._name = f"uploads-{pool}"
        self._file = manager.directory / self._name

    def read(self) -> History:
        try:
            return msgspec.msgpack.decode(self._file.read_bytes(), type=History)
        except FileNotFoundError:
            return History()

    def change(self, work: Callable[[History], T]) -> T:
        """Returns the result of `work`, and keeps its changes of the history."""
        with self._manager.lock(self._name):
            history = self.read()
            result = work(history)
            write_whole(self._file, msgspec.msgpack.encode(history))
        return result


def _now_ms() -> float:
    return time.monotonic() * 1000
