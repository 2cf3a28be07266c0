"""What a run leaves in storage when it ends, and how its driver notices the end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cairn.catalog.catalog import Catalog
from cairn.catalog.job.run_ends import record_run_end
from cairn.maintenance.cleanup import cleanup_job
from cairn.runtime.driver import run_watch
from cairn.runtime.driver.run_watch import RunWatch
from cairn.runtime.materialization import schedule, serve
from cairn.runtime.materialization.order import placed
from cairn.storage.posix import PosixStore
from tests.runtime.file_rows import directories, files, objects, rows
from tests.runtime.materialization.stream import Stream as Materialized
from tests.runtime.materialization.stream import here
from tests.runtime.merging_stream import Stream
from tests.runtime.tasks import QUERY, read_back, remembered


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    made = Stream(metastore_url, tmp_storage, str(tmp_path / "local"))
    made.restart(parallelism=2)
    return made


class Dies(PosixStore):
    """A store whose writer dies once its bytes are there."""

    def put(self, path: str, chunks: Any) -> None:
        super().put(path, chunks)
        raise InterruptedError


def die(stream: Stream) -> None:
    """Runs a task up to where its object is there and nobody has acknowledged it."""
    store = Dies(Path(stream.storage.removeprefix("file://")))
    with pytest.raises(InterruptedError):
        stream.task(0, store=store).run()


def end(stream: Stream) -> None:
    stream.plan.catalog.run("testing", lambda c: record_run_end(c, stream.plan.ref))


def state(stream: Stream) -> str:
    [found] = rows(stream.plan, "SELECT run_state FROM cairn.v_jobs WHERE job_id = :job")
    return str(found)


def test_a_job_that_stopped_before_its_first_checkpoint_leaves_no_object_and_no_directory(
    stream: Stream,
) -> None:
    die(stream)
    end(stream)
    stream.let_writes_end()
    cleanup_job(stream.plan.catalog, stream.plan.job)
    assert objects(stream.plan) == {}
    assert files(stream.plan, "WRITING") == []
    assert set(directories(stream.plan).values()) == {"DELETED"}
    root = Path(stream.storage.removeprefix("file://")) / stream.plan.job_id
    assert list((root / "taskmanager-owned").iterdir()) == []


def test_a_job_that_stopped_for_good_keeps_its_state_and_nothing_else(stream: Stream) -> None:
    for _ in range(3):
        stream.batch()
    die(stream)
    end(stream)
    stream.let_writes_end()
    cleanup_job(stream.plan.catalog, stream.plan.job)
    assert files(stream.plan, "WRITING") == []
    stream.assert_whole()
    assert objects(stream.plan).keys() == {path for path, *_ in files(stream.plan)}
    # The next run finds the state as it was.
    stream.restart(parallelism=4)
    stream.batch()
    stream.assert_whole()


def test_a_machine_that_goes_on_after_the_lease_fails_a_task_and_loses_no_batch(
    stream: Stream,
) -> None:
    stream.batch()
    tasks = [task.steps() for task in stream.tasks()]
    for steps in tasks:
        while next(steps) != "asked":
            pass
    rows(stream.plan, "UPDATE cairn.runs SET seen_at = seen_at - interval '2 h' RETURNING 1")
    cleanup_job(stream.plan.catalog, stream.plan.job)
    for steps in tasks:
        list(steps)
    stream.batches += 1
    stream.batch()
    assert state(stream) == "running"
    [newest] = rows(stream.plan, "SELECT max(checkpoint_id) FROM cairn.checkpoints")
    assert read_back(stream.plan, newest) == remembered(3)


# ------------------------------------------------------------------ killed materializations


def test_the_files_of_a_materialization_that_was_killed_go_while_its_run_goes_on(
    metastore_url: str, tmp_storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "start_unless_there", lambda _manager: None)
    stream = Materialized(metastore_url, tmp_storage, str(tmp_path / "local"))
    stream.run(2)
    stream.order()
    [due] = placed(stream.manager)

    # Killed after its bytes are there.
    with monkeypatch.context() as patch:
        patch.setattr("cairn.runtime.materialization.write._install", interrupted)
        with pytest.raises(InterruptedError):
            serve.take(stream.manager, [due], here)
    [left] = rows(stream.plan, WRITING)
    serve.take(stream.manager, [due], here)
    stream.run(2)
    rows(
        stream.plan,
        "UPDATE cairn.physical_files SET created_at = created_at - interval '21 min' RETURNING 1",
    )
    assert left in rows(stream.plan, WRITING)
    cleanup_job(stream.plan.catalog, stream.plan.job)
    assert rows(stream.plan, WRITING) == []
    assert left not in objects(stream.plan)


WRITING = "SELECT path FROM cairn.physical_files WHERE status = 'WRITING'"


def interrupted(*_: object) -> None:
    raise InterruptedError


# ------------------------------------------------------------------ the driver's watch


SEEN = "SELECT seen_at FROM cairn.runs ORDER BY epoch LIMIT 1"


class Session:
    """Stands for Spark: the ids of the queries that are active."""

    def __init__(self) -> None:
        self.active: set[str] | None = set()

    def __call__(self) -> set[str]:
        if self.active is None:
            raise ConnectionRefusedError
        return self.active


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def watch(stream: Stream, session: Session) -> RunWatch:
    made = RunWatch()
    made.add(stream.plan.ref, stream.plan.catalog, session)
    return made


def test_a_run_ends_when_its_query_is_not_active_any_more(
    stream: Stream, session: Session, watch: RunWatch
) -> None:
    watch.look()
    assert state(stream) == "running", "a plan that was built may be started"
    session.active = {QUERY, "another"}
    stream.batch()
    watch.look()
    assert state(stream) == "running"
    session.active = {"another"}
    watch.look()
    assert state(stream) == "ended"
    # The same plan is started again: it goes on before its first batch, and with it.
    session.active = {QUERY}
    watch.look()
    assert state(stream) == "running"


def test_a_session_that_cannot_be_asked_leaves_the_end_to_the_lease(
    stream: Stream, session: Session, watch: RunWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Spark Connect a driver outlives its server, such as a notebook does."""
    stream.batch()
    session.active = {QUERY}
    watch.look()
    monkeypatch.setattr(run_watch, "RENEW_S", 0.0)
    rows(stream.plan, "UPDATE cairn.runs SET seen_at = seen_at - interval '59 min' RETURNING 1")
    session.active = None
    seen = rows(stream.plan, SEEN)
    watch.look()
    watch.look(is_last=True)
    assert state(stream) == "running"
    assert rows(stream.plan, SEEN) == seen
    session.active = {QUERY}
    watch.look()
    assert rows(stream.plan, SEEN) > seen


def test_a_driver_exits_though_its_session_never_answers(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.batch()
    asked, hangs = threading.Event(), threading.Event()

    def active() -> set[str]:
        asked.set()
        hangs.wait()
        return set()

    watch = RunWatch()
    watch.add(stream.plan.ref, stream.plan.catalog, active)
    monkeypatch.setattr(run_watch, "_watch", watch)
    monkeypatch.setattr(run_watch, "_leaving", threading.Event())
    monkeypatch.setattr(run_watch, "_LEAVE_S", 0.1)
    thread = threading.Thread(target=run_watch._look_to_the_end)
    monkeypatch.setattr(run_watch, "_threads", [thread])
    thread.start()
    leaves = threading.Thread(target=run_watch._leave, daemon=True)
    leaves.start()
    assert asked.wait(60)
    leaves.join(20)
    waits_still = leaves.is_alive()
    hangs.set()
    thread.join()
    leaves.join()
    assert not waits_still


class Asynchronous:
    """A query that Spark tracks asynchronously; counts how often it is stopped."""

    def __init__(self) -> None:
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


def test_a_query_with_asynchronous_progress_is_stopped_and_no_other(
    stream: Stream, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    ours, other = Asynchronous(), Asynchronous()
    found: dict[str, Any] = {QUERY: ours, "another": other}
    watch = RunWatch()
    watch.add(stream.plan.ref, stream.plan.catalog, session, lambda: found)
    watch.stop_asynchronous()
    assert (ours.stops, other.stops) == (0, 0), "whose the query is says its first batch"
    stream.batch()
    watch.stop_asynchronous()
    watch.stop_asynchronous()
    assert (ours.stops, other.stops) == (1, 0)
    assert "asyncProgressTrackingEnabled is true" in caplog.text
    # It ends; the same plan is started again, as before.
    watch.look()
    session.active = {QUERY}
    watch.look()
    watch.stop_asynchronous()
    assert (ours.stops, other.stops) == (2, 0)


def test_a_run_that_is_over_is_forgotten_once_a_newer_one_has_begun(
    stream: Stream, session: Session, watch: RunWatch
) -> None:
    stream.batch()
    watch.look()
    assert state(stream) == "ended"
    stream.restart(parallelism=2)
    watch.add(stream.plan.ref, stream.plan.catalog, session)
    watch.look()
    assert len(watch._runs) == 2, "the plan of the first may be started again"
    session.active = {QUERY}
    stream.batch()
    watch.look()
    watch.look()
    assert [*watch._runs] == [stream.plan.run_id]
    assert state(stream) == "running"


def test_a_session_that_is_stopped_while_it_is_asked_ends_no_watch(stream: Stream) -> None:
    def stopped() -> set[str]:
        raise ValueError("Cannot invoke RPC on closed channel!")  # as gRPC does

    stream.batch()
    watch = RunWatch()
    watch.add(stream.plan.ref, stream.plan.catalog, stopped)
    watch.look()
    assert state(stream) == "running"


def test_a_run_whose_end_was_noted_asks_the_metastore_nothing_more(
    stream: Stream, watch: RunWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.batch()
    watch.look(is_last=True)
    monkeypatch.setattr(Catalog, "run", pytest.fail)
    watch.look()
    watch.look(is_last=True)


def test_a_driver_that_exits_ends_what_is_not_active(
    stream: Stream, session: Session, watch: RunWatch
) -> None:
    session.active = {QUERY}
    stream.batch()
    watch.look(is_last=True)
    assert state(stream) == "running", "the query outlives this process, as with Spark Connect"
    session.active = set()
    watch.look(is_last=True)
    assert state(stream) == "ended"


def test_a_plan_that_was_never_started_ends_with_its_driver(
    stream: Stream, watch: RunWatch
) -> None:
    watch.look(is_last=True)
    assert state(stream) == "ended"


def test_a_lease_is_renewed_each_minute_and_not_for_a_run_that_was_replaced(
    stream: Stream, session: Session, watch: RunWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.active = {QUERY}
    stream.batch()
    watch.look()
    first = rows(stream.plan, SEEN)
    watch.look()
    assert rows(stream.plan, SEEN) == first
    monkeypatch.setattr(run_watch, "RENEW_S", 0.0)
    watch.look()
    second = rows(stream.plan, SEEN)
    assert second > first
    stream.restart(parallelism=2)
    stream.batch()
    watch.look()
    watch.look(is_last=True)
    assert rows(stream.plan, SEEN) == second
