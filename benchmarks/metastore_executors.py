"""Processes that load the metastore as executors do: one job by many, and many jobs by few."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

from benchmarks.metastore_server import Server
from benchmarks.metastore_shape import Batch, Calls, JobRef, Sizes, share

_LONGEST_S = 600
_FORK = multiprocessing.get_context("fork")  # 32 interpreters that import would take a minute


@dataclass
class Answer:
    """What one process has measured, in seconds. Begins are by batch: when, and until when."""

    begins: list[tuple[float, float]] = field(default_factory=list)
    commits: list[dict[str, float]] = field(default_factory=list)
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers of all processes, and what the measured part took as a whole."""

    answers: list[Answer]
    seconds: float
    server_cpu_s: float
    wal_bytes: int


def contention(
    calls: Calls, server: Server, job: JobRef, executors: int, sizes: Sizes
) -> dict[str, float]:
    """Returns the figures of one job whose batches are begun and committed by many executors.

    A batch begins when all executors have committed the one before.
    """
    step = _FORK.Barrier(executors)

    def run(number: int, meet: Callable[[], None]) -> Answer:
        subtasks, answer = share(job.parallelism, executors, number), Answer()
        for batch_id in range(sizes.warm_up_batches + sizes.batches):
            if batch_id == sizes.warm_up_batches:
                meet()
                answer = Answer()
            step.wait(_LONGEST_S)
            batch = Batch(job, batch_id)
            began_s = time.monotonic()
            checkpoint_id = calls.begin(batch, subtasks)
            answer.begins.append((began_s, time.monotonic()))
            answer.commits.append(calls.commit_group(batch, checkpoint_id, number, subtasks))
        return answer

    measured = _measure(executors, run, server)
    batches = list(zip(*(answer.begins for answer in measured.answers), strict=True))
    # The first that is done: begins of one job are one after the other, and it opens the batch.
    firsts = [min(begins, key=lambda begin: begin[1]) for begins in batches]
    others = [
        b for begins, first in zip(batches, firsts, strict=True) for b in begins if b != first
    ]
    figures = {"batches/s": sizes.batches / measured.seconds}
    figures |= _percentiles("first begin", [end - began for began, end in firsts])
    if others:
        figures |= _percentiles("other begins", [end - began for began, end in others])
    return figures | _commits(measured) | _costs(measured, sizes.batches)


def many_jobs(
    calls: Calls, server: Server, jobs: Sequence[JobRef], sizes: Sizes
) -> dict[str, float]:
    """Returns the figures of jobs that each want a batch a second, by few processes.

    A process that is late does its batches one after the other, without a pause.
    """

    def run(number: int, meet: Callable[[], None]) -> Answer:
        mine = jobs[number :: sizes.job_processes]
        batches = [0] * len(mine)
        _run_jobs(calls, mine, batches, sizes.warm_up_s)
        meet()
        return _run_jobs(calls, mine, batches, sizes.seconds)

    measured = _measure(sizes.job_processes, run, server)
    begins = [end - began for answer in measured.answers for began, end in answer.begins]
    figures = {"batches/s": len(begins) / measured.seconds}
    figures |= _percentiles("begin", begins)
    return figures | _commits(measured) | _costs(measured, len(begins))


def _run_jobs(calls: Calls, jobs: Sequence[JobRef], batches: list[int], seconds: float) -> Answer:
    """Runs a batch a second of each job, by its next batch, which is counted up."""
    answer, start_s = Answer(), time.monotonic()
    for number in range(int(seconds * len(jobs))):
        time.sleep(max(0.0, start_s + number / len(jobs) - time.monotonic()))
        began_s = time.monotonic()
        if began_s > start_s + seconds:
            break
        at = number % len(jobs)
        batch = Batch(jobs[at], batches[at])
        batches[at] += 1
        subtasks = range(jobs[at].parallelism)
        checkpoint_id = calls.begin(batch, subtasks)
        answer.begins.append((began_s, time.monotonic()))
        answer.commits.append(calls.commit_group(batch, checkpoint_id, 0, subtasks))
    time.sleep(max(0.0, start_s + seconds - time.monotonic()))
    return answer


def _measure(
    processes: int, run: Callable[[int, Callable[[], None]], Answer], server: Server
) -> Measured:
    """Forks processes that each run; what follows the meeting that they are given is measured."""
    gate, answers = _FORK.Barrier(processes + 1), _FORK.SimpleQueue()
    started = [
        _FORK.Process(target=_process, args=(run, number, gate, answers), daemon=True)
        for number in range(processes)
    ]
    for process in started:
        process.start()
    gate.wait(_LONGEST_S)
    server_cpu_s, wal_bytes, began_s = server.cpu_s(), server.wal_bytes(), time.monotonic()
    gate.wait(_LONGEST_S)
    gate.wait(_LONGEST_S)
    measured = Measured(
        seconds=time.monotonic() - began_s,
        server_cpu_s=server.cpu_s() - server_cpu_s,
        wal_bytes=server.wal_bytes() - wal_bytes,
        answers=[],
    )
    gate.wait(_LONGEST_S)  # only now do connections end, and with them processes of the server
    measured.answers.extend(answers.get() for _ in started)
    for process in started:
        process.join()
    return measured


def _process(
    run: Callable[[int, Callable[[], None]], Answer],
    number: int,
    gate: Barrier,
    answers: SimpleQueue[Answer],
) -> None:
    used_s = 0.0

    def meet() -> None:
        nonlocal used_s
        gate.wait(_LONGEST_S)
        gate.wait(_LONGEST_S)
        used_s = time.process_time()

    is_done = False
    try:
        answer = run(number, meet)
        answer.cpu_s = time.process_time() - used_s
        gate.wait(_LONGEST_S)
        gate.wait(_LONGEST_S)
        is_done = True
    finally:
        if not is_done:
            gate.abort()  # nobody waits for a process that has failed
    answers.put(answer)


def _commits(measured: Measured) -> dict[str, float]:
    """Returns the figures of commits, and of their transactions where there are several."""
    commits = [commit for answer in measured.answers for commit in answer.commits]
    figures = _percentiles("commit", [sum(commit.values()) for commit in commits])
    for name in commits[0]:
        figures |= _percentiles(name, [commit[name] for commit in commits])
    return figures


def _costs(measured: Measured, batches: int) -> dict[str, float]:
    clients_cpu_s = sum(answer.cpu_s for answer in measured.answers)
    return {
        "server CPU ms a batch": 1000 * measured.server_cpu_s / batches,
        "clients CPU ms a batch": 1000 * clients_cpu_s / batches,
        "WAL bytes a batch": measured.wal_bytes / batches,
    }


def _percentiles(what: str, seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        f"{what} p{percent} ms": 1000
        * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
        for percent in (50, 99)
    }
