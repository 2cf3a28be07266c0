"""SIGKILL at random points: the driver's process group, a Python worker, an executor."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from sqlalchemy import func, select

from cairn.catalog.catalog import Catalog
from cairn.layout import generation_of
from cairn.maintenance.cleanup import cleanup_job
from cairn.savepoints.rebuild import rebuild
from cairn.storage import open_store
from metastore.group_commits import SubtaskAck
from metastore.models import Checkpoint, PhysicalFile
from tests.streams import timed_streams
from tests.streams.streams import (
    ROOT,
    Settings,
    dump,
    expected_state,
    newest_state,
    read_state,
    retained,
)
from tests.streams.timed_streams import (
    CLOCK,
    EVENTS,
    Expected,
    late_rows,
    times_of_batches,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

MakeStream = Callable[..., Settings]
OPTIONS = {
    "cairn.changelog.periodic-materialize.interval": "2 s",
    "cairn.manifest-interval": "1",
}
MERGING: tuple[dict[str, str], ...] = (
    {"cairn.file-merging.across-checkpoint-boundary": "true"},
    {"cairn.file-merging.enabled": "false"},
    {},
    {
        "cairn.file-merging.across-checkpoint-boundary": "true",
        "cairn.file-merging.max-file-size": "64 kb",
        "cairn.file-merging.max-subtasks-per-file": "1",
        "cairn.file-merging.max-file-pool-size": "1",
        "cairn.file-merging.pool-blocking": "true",
    },
)


@contextmanager
def running(
    settings: Settings, log: Path, program: str = "tests.streams.streams"
) -> Iterator[subprocess.Popen[bytes]]:
    """The stream as a process group of its own; nothing of it is left afterwards."""
    forget_files_without_a_batch(settings)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", program, dump(settings)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_group(process)


def forget_files_without_a_batch(settings: Settings) -> None:
    """Removes what Spark's file source has noted for a batch that was never planned.

    Killed between the source's log and the query's, Spark puts two files in the next batch, and
    here files and batches have the same numbers.
    """
    first = Path(settings.spark_checkpoint)
    for checkpoint in first.parent.glob(f"{first.name}*"):
        planned = [int(file.name) for file in (checkpoint / "offsets").glob("[0-9]*")]
        for noted in (checkpoint / "sources/0").glob("[0-9]*"):
            if int(noted.name.partition(".")[0]) > max(planned, default=-1):
                noted.unlink()
                noted.with_name(f".{noted.name}.crc").unlink(missing_ok=True)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def finish(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.wait(300) == 0, log.read_text()[-6000:]


def has_begun_more(url: str, before: int) -> bool:
    return begun(url) > before


def begun(url: str) -> int:
    """Returns how many checkpoints were begun."""
    with Catalog(url).begin() as connection:
        return connection.scalar(select(func.count()).select_from(Checkpoint)) or 0


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 300
    while not reached():
        assert process.poll() in (None, 0), log.read_text()[-6000:]
        assert time.monotonic() < deadline, log.read_text()[-6000:]
        if process.poll() == 0:
            return
        time.sleep(0.01)


def assert_storage_is_known(settings: Settings) -> None:
    """Every sealed file has its object, and every object is of a file that is sealed or meant."""
    listed = {found.path for found in open_store(settings.storage).list("")}
    stored = {path for path in listed if generation_of(path) is None}
    with Catalog(settings.metastore).begin() as connection:
        found = connection.execute(select(PhysicalFile.path, PhysicalFile.status)).all()
    assert {path for path, status in found if status == "SEALED"} <= stored
    assert stored <= {path for path, status in found if status in ("SEALED", "WRITING")}


def kill_workers(process: subprocess.Popen[bytes], until_s: float, chance: random.Random) -> int:
    """Kills a Python worker now and then, for some time or until the driver has ended."""
    kills = 0
    end = time.monotonic() + until_s
    while process.poll() is None and time.monotonic() < end:
        if workers := python_workers(process.pid):
            kills += kill(chance.choice(workers))
        time.sleep(min(chance.uniform(0.3, 1), max(end - time.monotonic(), 0)))
    return kills


def test_driver_and_workers_killed_at_random_points_lose_and_double_nothing(
    stream: MakeStream, tmp_path: Path
) -> None:
    """Two streams with timers and TTL; merging and parallelism change whenever they restart."""
    files, parallelisms = 24, (5, 3, 8, 2)
    jobs = stream(0, job=f"{EVENTS} {CLOCK}", master="local[2,99]")
    jobs = replace(jobs, source=timed_streams.write_source(tmp_path / "timed", files))
    log, chance, url = tmp_path / "log", random.Random(), jobs.metastore
    kills = 0
    for merging, parallelism in zip(MERGING, parallelisms, strict=True):
        settings = replace(jobs, options={**OPTIONS, **merging}, parallelism=parallelism)
        with running(settings, log, "tests.streams.timed_streams") as process:
            wait_until(partial(has_begun_more, url, begun(url)), process, log)
            kills += kill_workers(process, chance.uniform(0, 2), chance)
            assert process.poll() is None, "nothing is left to do when the driver is killed"
    with running(replace(jobs, options=OPTIONS), log, "tests.streams.timed_streams") as process:
        wait_until(partial(has_begun_more, url, begun(url)), process, log)
        kills += kill_workers(process, 4, chance)
        finish(process, log)
    assert kills >= 3
    for job in (EVENTS, CLOCK):
        cleanup_job(Catalog(url), job)
        times = times_of_batches(url, job)
        for checkpoint, batch in retained(url, job).items():
            assert read_state(url, job, checkpoint) == expected(job, times, batch + 1).state
    assert max(retained(url, EVENTS).values()) == max(retained(url, CLOCK).values()) == files - 1
    assert late_rows(url, EVENTS) == Expected.of_events(files).late
    times = times_of_batches(url, EVENTS)
    assert {n: times[n][1] for n in times} == Expected.of_events(files).watermarks
    assert_storage_is_known(jobs)


def expected(job: str, times: Mapping[int, tuple[int, int]], files: int) -> Expected:
    """Returns what a stream should have done in its first batches."""
    if job == EVENTS:
        return Expected.of_events(files)
    return Expected.of_clock({batch: times[batch][0] for batch in range(files)})


def test_subtasks_stay_on_their_executor_and_an_executor_killed_loses_nothing(
    stream: MakeStream, tmp_path: Path, other_url: str
) -> None:
    files = 16
    settings = stream(files, master="local-cluster[3,1,1024]", parallelism=6, options=OPTIONS)
    log, chance, url = tmp_path / "log", random.Random(), settings.metastore
    with running(settings, log) as process:
        wait_until(lambda: begun(url) > 8, process, log)
        placed = placements(url, first=2, last=7)
        assert len({tm for tms in placed.values() for tm in tms}) == 3
        assert all(len(tms) == 1 for tms in placed.values()), placed
        assert kill(executors(process.pid)[0])
        assert kill_workers(process, 2, chance)
        finish(process, log)
    assert newest_state(url) == expected_state(files)
    cleanup_job(Catalog(url), settings.job)
    for checkpoint, batch in retained(url, settings.job).items():
        assert read_state(url, settings.job, checkpoint) == expected_state(batch + 1)
    assert_storage_is_known(settings)
    assert_rebuilt(settings, other_url)


def assert_rebuilt(settings: Settings, url: str) -> None:
    """Every checkpoint that manifests bring back is what it should be."""
    [job] = rebuild(Catalog(url), settings.storage).jobs
    back = retained(url, settings.job)
    assert len(back) == job.checkpoints >= 2
    for checkpoint, batch in back.items():
        assert read_state(url, settings.job, checkpoint) == expected_state(batch + 1)


def placements(url: str, first: int, last: int) -> dict[int, set[str]]:
    """Returns the executors that each subtask ran on, over some checkpoints."""
    placed: dict[int, set[str]] = {}
    with Catalog(url).begin() as connection:
        for ack in connection.execute(
            select(SubtaskAck.subtask, SubtaskAck.tm_id).where(
                SubtaskAck.checkpoint_id.between(first, last)
            )
        ):
            placed.setdefault(ack.subtask, set()).add(ack.tm_id)
    return placed


def python_workers(driver: int) -> list[psutil.Process]:
    """Returns the processes in which Spark runs Python tasks."""
    daemons = [p for p in descendants(driver) if "pyspark.daemon" in command(p)]
    return [p for p in daemons if "pyspark.daemon" in command(p.parent())]


def executors(driver: int) -> list[psutil.Process]:
    return [p for p in descendants(driver) if "CoarseGrainedExecutorBackend" in command(p)]


def descendants(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def command(process: psutil.Process | None) -> str:
    try:
        return " ".join(process.cmdline()) if process else ""
    except psutil.NoSuchProcess:
        return ""


def kill(process: psutil.Process) -> bool:
    """Kills a process; False if it was gone already."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True
