"""What batches read of local state is compared now and then, at a bounded cost."""

from __future__ import annotations

import time
from pathlib import Path

import lmdb
import pytest

from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor.open_stores import close_all
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization import verification
from cairn.runtime.materialization.carry_out import carry_out, carry_out_all
from cairn.runtime.materialization.order import Order
from cairn.runtime.materialization.verification import SHARE, Verified
from cairn.state.entries import entry_prefix
from cairn.state.view import Overlay
from tests.runtime.tasks import QUERY, Task, Write, new_run, remember, remember_big

UNREAD = entry_prefix(3, 9, b"unread")
DAMAGE = "local state is not what was written"


class Job:
    """A job of some subtasks, whose changes are little beside their state."""

    def __init__(self, url: str, storage: str, local_dir: str, parallelism: int = 1) -> None:
        self.plan: RunContext = new_run(url, storage, local_dir, parallelism=parallelism)
        self.batches = 0

    def run(self, batches: int = 1) -> None:
        for _ in range(batches):
            for subtask in range(self.plan.parallelism):
                write = self.write(self.batches)
                Task(self.plan, "one", self.batches, subtask, self.batches, write).run()
            self.batches += 1

    def write(self, number: int) -> Write:
        def write(overlay: Overlay, groups: KeyGroupRange) -> None:
            (remember(number) if number else remember_big(number))(overlay, groups)
            if number == 0 and 3 in groups:
                overlay.put(UNREAD, b"as it was")

        return write

    def order(self, subtask: int = 0) -> Order:
        batch = self.plan.batch(QUERY, self.batches - 1)
        return Order(batch=batch, subtask=subtask, now_ms=self.batches, ordered_s=0)

    @property
    def manager(self) -> TaskManager:
        return TaskManager(self.plan, "one")

    def materialize(self) -> None:
        self.run(2)
        carry_out(self.manager, self.order())

    def verified(self, subtask: int = 0) -> Path:
        return self.manager.subtask_directory(subtask) / "verified"

    def damage(self) -> None:
        """Flips bits of an entry that no batch reads or changes any more."""
        close_all()
        directory = self.manager.subtask_directory(0)
        with (
            lmdb.open(str(directory), map_size=1 << 30, lock=False) as environment,
            environment.begin(write=True) as transaction,
        ):
            transaction.put(UNREAD, b"as it wbs")

    def kinds(self) -> list[str]:
        with self.plan.catalog.begin() as connection:
            found = connection.exec_driver_sql("SELECT kind FROM cairn.placed_segments ORDER BY 1")
            return [row[0] for row in found]


@pytest.fixture
def job(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Job:
    made = Job(metastore_url, tmp_storage, str(tmp_path / "local"))
    made.materialize()  # a base
    return made


def test_damage_that_no_base_would_find_is_found_by_the_next_materialization(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.materialize()
    assert job.kinds() == ["keyed_full", "keyed_increment"]
    assert DAMAGE not in caplog.text
    job.damage()
    job.materialize()
    assert DAMAGE in caplog.text
    assert "rebuilt from storage" in caplog.text
    caplog.clear()
    job.run(2)
    job.materialize()
    assert DAMAGE not in caplog.text


def test_it_costs_a_share_of_a_core_at_most(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    verification._write(job.verified(), Verified(at_s=now_s, cpu_s=2.0))
    job.damage()
    for waited_s in (0.0, 1.9 / SHARE):
        monkeypatch.setattr(time, "monotonic", lambda s=waited_s: now_s + s)
        job.materialize()
        assert DAMAGE not in caplog.text, waited_s
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 2.1 / SHARE)
    job.materialize()
    assert DAMAGE in caplog.text


def test_a_base_has_compared_all(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cairn.runtime.materialization.verification")
    assert job.verified().exists()
    assert "compared with" not in caplog.text
    job.materialize()
    assert caplog.text.count("compared with") == 1


def test_a_note_that_was_cut_is_none(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.verified().write_bytes(b"\x82")
    job.damage()
    job.materialize()
    assert DAMAGE in caplog.text


def test_what_is_materialized_together_is_compared_each(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    job = Job(metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=2)
    for _ in range(2):
        job.run(2)
        carry_out_all(job.manager, [job.order(0), job.order(1)])
    assert all(job.verified(subtask).exists() for subtask in (0, 1))
