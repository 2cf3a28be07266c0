"""SIGKILL at random points: the driver's process group, a Python worker, an executor."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from sqlalchemy import func, select

from cairn.catalog.catalog import Catalog
from cairn.catalog.migrate import migrate
from cairn.maintenance.cleanup import cleanup_job
from cairn.savepoints.rebuild import rebuild
from cairn.storage import open_store
from metastore.models import Checkpoint, PhysicalFile, Run, SubtaskAck
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
DRIVER_KILLS = 20
FILES = 45


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


def has_begun(url: str, run: int) -> bool:
    return begun(url, run) > 0


def has_begun_more(url: str, before: int) -> bool:
    return begun(url) > before


def begun(url: str, run: int = 0) -> int:
    """Returns how many checkpoints were begun by the runs from this one on."""
    with Catalog(url).begin() as connection:
        count = connection.scalar(
            select(func.count()).select_from(Checkpoint).where(Checkpoint.epoch >= run)
        )
    return count or 0


def runs(url: str) -> int:
    with Catalog(url).begin() as connection:
        return connection.scalar(select(func.coalesce(func.max(Run.epoch), 0))) or 0


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert process.poll() in (None, 0), log.read_text()[-6000:]
        assert time.monotonic() < deadline, log.read_text()[-6000:]
        if process.poll() == 0:
            return
        time.sleep(0.01)


def assert_whole(settings: Settings, files: int) -> None:
    """The final state, every retained checkpoint, and storage are exactly what they should be."""
    url = settings.metastore
    assert newest_state(url) == expected_state(files)
    cleanup_job(Catalog(url), settings.job)
    for checkpoint, batch in retained(url, settings.job).items():
        assert read_state(url, settings.job, checkpoint) == expected_state(batch + 1)
    stored = {found.path for found in open_store(settings.storage).list("")}
    with Catalog(url).begin() as connection:
        sealed = set(
            connection.scalars(select(PhysicalFile.path).where(PhysicalFile.status == "SEALED"))
        )
        intended = set(
            connection.scalars(select(PhysicalFile.path).where(PhysicalFile.status == "WRITING"))
        )
    assert sealed <= stored
    assert stored <= sealed | intended


def test_the_driver_killed_at_random_points_loses_and_doubles_nothing(
    stream: MakeStream, tmp_path: Path
) -> None:
    settings = stream(FILES, options={"cairn.changelog.periodic-materialize.interval": "2 s"})
    log, chance = tmp_path / "log", random.Random()
    url = settings.metastore
    for _ in range(DRIVER_KILLS):
        with running(settings, log) as process:
            run = runs(url) + 1
            wait_until(partial(has_begun, url, run), process, log)
            time.sleep(chance.uniform(0, 1.2))
    with running(settings, log) as process:
        finish(process, log)
    assert_whole(settings, FILES)


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


def test_merging_switched_whenever_the_driver_is_killed_loses_and_doubles_nothing(
    stream: MakeStream, tmp_path: Path
) -> None:
    files = 20
    options = {"cairn.changelog.periodic-materialize.interval": "2 s"}
    settings = stream(files)
    log, chance, url = tmp_path / "log", random.Random(), settings.metastore
    for number in range(8):
        merging = MERGING[number % len(MERGING)]
        with running(replace(settings, options={**options, **merging}), log) as process:
            before = begun(url)
            wait_until(partial(has_begun_more, url, before), process, log)
            time.sleep(chance.uniform(0, 1.2))
    with running(replace(settings, options={**options, **MERGING[0]}), log) as process:
        finish(process, log)
    assert_whole(settings, files)


def test_python_workers_killed_at_random_points_lose_and_double_nothing(
    stream: MakeStream, tmp_path: Path, empty_database_url: str
) -> None:
    files = 30
    options = {
        "cairn.changelog.periodic-materialize.interval": "2 s",
        "cairn.manifest-interval": "1",
    }
    settings = stream(files, master="local[2,99]", options=options)
    log, chance, kills = tmp_path / "log", random.Random(), 0
    with running(settings, log) as process:
        wait_until(lambda: begun(settings.metastore) > 1, process, log)
        while process.poll() is None and kills < 20:
            workers = python_workers(process.pid)
            if workers:
                kills += kill(chance.choice(workers))
            time.sleep(chance.uniform(0.2, 0.8))
        finish(process, log)
    assert kills >= 3
    assert_whole(settings, files)
    assert_rebuilt(settings, empty_database_url)


def assert_rebuilt(settings: Settings, url: str) -> None:
    """Every checkpoint that manifests bring back is what it should be."""
    migrate(Catalog(url))
    [job] = rebuild(Catalog(url), settings.storage).jobs
    back = retained(url, settings.job)
    assert len(back) == job.checkpoints >= 2
    for checkpoint, batch in back.items():
        assert read_state(url, settings.job, checkpoint) == expected_state(batch + 1)


def test_subtasks_stay_on_their_executor_and_an_executor_killed_loses_nothing(
    stream: MakeStream, tmp_path: Path
) -> None:
    files = 24
    settings = stream(
        files,
        master="local-cluster[3,1,1024]",
        parallelism=6,
        options={"cairn.changelog.periodic-materialize.interval": "2 s"},
    )
    log = tmp_path / "log"
    with running(settings, log) as process:
        wait_until(lambda: begun(settings.metastore) > 10, process, log)
        placed = placements(settings.metastore, first=2, last=9)
        assert len({tm for tms in placed.values() for tm in tms}) == 3
        assert all(len(tms) == 1 for tms in placed.values()), placed
        assert kill(executors(process.pid)[0])
        finish(process, log)
    assert_whole(settings, files)


def test_timers_ttl_and_watermark_survive_kills_of_driver_and_workers(
    stream: MakeStream, tmp_path: Path
) -> None:
    files = 30
    options = {"cairn.changelog.periodic-materialize.interval": "2 s"}
    settings = replace(
        stream(0, job=f"{EVENTS} {CLOCK}", parallelism=5, master="local[2,99]", options=options),
        source=timed_streams.write_source(tmp_path / "timed", files),
    )
    log, chance, url = tmp_path / "log", random.Random(), settings.metastore
    program = "tests.streams.timed_streams"
    for _ in range(3):
        with running(settings, log, program) as process:
            before = begun(url)
            wait_until(partial(has_begun_more, url, before), process, log)
            time.sleep(chance.uniform(0, 4))
    kills = 0
    with running(replace(settings, master="local-cluster[2,1,1024]"), log, program) as process:
        before = begun(url)
        wait_until(partial(has_begun_more, url, before), process, log)
        while process.poll() is None and kills < 6:
            workers = python_workers(process.pid)
            if workers:
                kills += kill(chance.choice(workers))
            time.sleep(chance.uniform(0.5, 1.5))
        finish(process, log)
    assert kills >= 2
    assert_timed(url, files)


def assert_timed(url: str, files: int) -> None:
    """Both streams have fired each timer once, and kept and expired what they should."""
    expected = Expected.of_events(files)
    assert newest_state(url, EVENTS) == expected.state
    assert late_rows(url, EVENTS) == expected.late
    times = times_of_batches(url, EVENTS)
    assert {batch: times[batch][1] for batch in times} == expected.watermarks
    clock = times_of_batches(url, CLOCK)
    expected = Expected.of_clock({batch: clock[batch][0] for batch in clock})
    assert newest_state(url, CLOCK) == expected.state


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
