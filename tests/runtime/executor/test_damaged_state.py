"""Local state that a disk has damaged: it is noticed, thrown away, and rebuilt from storage."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest
from sqlalchemy import text

from cairn.errors import DamagedStateError
from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor.local_mark import MOST_OPENINGS
from cairn.runtime.executor.local_record import RECORD_KEY, Position
from cairn.runtime.executor.local_store import LocalStore
from cairn.runtime.executor.open_stores import close_all, open_local
from cairn.state.entries import entry_prefix
from cairn.state.view import DELETE, DELETE_PREFIX, PUT, Changes, Overlay
from tests.runtime.tasks import Task, Write, new_run, read_back, remember, remembered

GROUPS = KeyGroupRange(0, 8)
STATE = {
    entry_prefix(number % 8, 1, b"%06d" % number): b"value %d" % number for number in range(2000)
}
ROOT = Path(__file__).parents[3]
FORKED = multiprocessing.get_context("fork")


def fill(directory: Path) -> LocalStore:
    store = LocalStore(directory)
    with store.write() as writer:
        keys = sorted(STATE)
        writer.apply(Changes([PUT] * len(keys), keys, [STATE[key] for key in keys]))
        writer.move_to(Position(1, "run", 1))
    return store


def verified(store: LocalStore) -> None:
    with store.read() as reader:
        reader.verify()


def is_empty(directory: Path) -> bool:
    with open_local(directory).read() as reader:
        return reader.position() is None and not list(reader.range(GROUPS))


def replaced(directory: Path, before: bytes, after: bytes) -> None:
    """Changes bytes in the file, wherever they are: older versions of pages have them, too."""
    file = directory / "data.mdb"
    data = file.read_bytes()
    assert before in data
    file.write_bytes(data.replace(before, after))


def behind_its_back(change: Callable[[lmdb.Transaction], object]) -> Callable[[Path], None]:
    """Changes entries without the digest, as a page that was not written does."""

    def damage(directory: Path) -> None:
        with (
            lmdb.open(str(directory), map_size=1 << 30, lock=False) as environment,
            environment.begin(write=True) as transaction,
        ):
            change(transaction)

    return damage


KEY = entry_prefix(7, 1, b"%06d" % 1999)
DAMAGES: dict[str, Callable[[Path], None]] = {
    "a bit of a value": lambda d: replaced(d, b"value 1999", b"value 1998"),
    "a bit of a key": lambda d: replaced(d, b"001999", b"001998"),
    "a lost entry": behind_its_back(lambda t: t.delete(KEY)),
    "a doubled entry": behind_its_back(lambda t: t.put(KEY + b"0", STATE[KEY])),
    "an older value": behind_its_back(lambda t: t.put(KEY, b"value 0")),
    "another key group": behind_its_back(lambda t: t.put(b"\x00\x09" + KEY[2:], t.pop(KEY))),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_entries_are_noticed_and_thrown_away(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "subtask-0-1"
    store = fill(directory)
    verified(store)
    store.close()
    damage(directory)
    with pytest.raises(DamagedStateError, match="not what was written"):
        verified(open_local(directory))
    assert "rebuilt from storage" in caplog.text
    assert is_empty(directory)


def test_a_damaged_record_is_noticed_where_it_is_read(tmp_path: Path) -> None:
    directory = tmp_path / "subtask-0-1"
    fill(directory).close()

    def move_back(transaction: lmdb.Transaction) -> None:
        record = transaction.get(RECORD_KEY)
        transaction.put(RECORD_KEY, record.replace(b"run", b"ruN"))

    behind_its_back(move_back)(directory)
    with pytest.raises(DamagedStateError, match="the record"), open_local(directory).read() as read:
        read.position()
    assert is_empty(directory)


def test_the_digest_follows_whatever_is_changed(tmp_path: Path) -> None:
    store = fill(tmp_path / "subtask-0-1")
    chosen = random.Random(1)
    names = [entry_prefix(g, 1, b"n%d" % n) for g in range(8) for n in range(5)]
    names += [entry_prefix(1, 2, b"long" * 200) + b"%d" % n for n in range(5)]
    for number in range(200):
        rows: list[tuple[int, bytes, bytes | None]] = []
        for _ in range(chosen.randrange(8)):
            key, op = chosen.choice(names), chosen.choice([PUT, PUT, PUT, DELETE, DELETE_PREFIX])
            key = key[:-1] if op == DELETE_PREFIX and key[3] == 2 else key
            rows.append((op, key, b"%d" % number if op == PUT else None))
        if chosen.random() < 0.5:
            rows.sort(key=lambda row: row[1])
        with store.write() as writer:
            if chosen.random() < 0.1:
                start = chosen.randrange(8)
                writer.clear(KeyGroupRange(start, chosen.choice([start + 1, 8])))
            writer.apply(
                Changes(*map(list, zip(*rows, strict=True))) if rows else Changes([], [], [])
            )
        verified(store)


@pytest.mark.parametrize("pages", [1, 2, 3, 10, -1])
def test_a_truncated_file_is_noticed_before_a_page_is_read(tmp_path: Path, pages: int) -> None:
    directory = tmp_path / "subtask-0-1"
    fill(directory).close()
    file = directory / "data.mdb"
    os.truncate(file, pages * 4096 if pages > 0 else file.stat().st_size - 1)

    def look() -> None:
        assert is_empty(directory)

    # Who reads behind the end of a file is killed.
    with in_a_process(look) as process:
        assert process.exitcode == 0


def test_an_environment_that_is_no_longer_one_is_made_anew(tmp_path: Path) -> None:
    directory = tmp_path / "subtask-0-1"
    fill(directory).close()
    (directory / "data.mdb").write_bytes(b"x" * 10_000)
    assert is_empty(directory)


def test_pages_that_lmdb_refuses_lead_to_a_new_environment(tmp_path: Path) -> None:
    directory = tmp_path / "subtask-0-1"
    fill(directory).close()
    file = directory / "data.mdb"
    size_bytes = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(2 * 4096)
        opened.write(b"\x00" * (size_bytes - 2 * 4096))
    with pytest.raises(DamagedStateError, match="damaged"), open_local(directory).read() as reader:
        reader.get(KEY)
    assert is_empty(directory)


def test_another_process_that_has_it_open_finds_the_new_one(tmp_path: Path) -> None:
    directory = tmp_path / "subtask-0-1"
    fill(directory).close()
    first = open_local(directory)

    command = [sys.executable, "-m", "tests.runtime.executor.local_writer", str(directory)]
    subprocess.run([*command, "damage", "1"], check=True, cwd=ROOT)
    assert open_local(directory) is not first
    assert is_empty(directory)


@contextmanager
def in_a_process(work: Callable[[], None]) -> Iterator[multiprocessing.process.BaseProcess]:
    def quietly() -> None:
        faulthandler.disable()  # its death is wanted
        work()

    process = FORKED.Process(target=quietly)
    process.start()
    process.join(30)
    yield process


def test_an_environment_that_kills_whoever_reads_it_is_made_anew(tmp_path: Path) -> None:
    directory = tmp_path / "subtask-0-1"
    fill(directory).close()

    def read_and_die() -> None:
        store = open_local(directory)
        with store.watched(), store.read():
            os.kill(os.getpid(), signal.SIGBUS)

    for _ in range(MOST_OPENINGS):
        with in_a_process(read_and_die) as process:
            assert process.exitcode == -signal.SIGBUS
    assert is_empty(directory)


def test_an_environment_is_kept_whoever_is_killed_while_others_come_to_an_end(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "subtask-0-1"
    fill(directory).close()

    def hold_and_die() -> None:
        open_local(directory)
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(MOST_OPENINGS + 2):
        with in_a_process(hold_and_die):
            close_all()
        store = open_local(directory)
        with store.watched(), store.read() as reader:
            assert reader.get(KEY) == STATE[KEY]


class Job:
    """A job of one subtask, whose tasks run here, and whose state does not fit its base's file."""

    def __init__(self, url: str, storage: str, root: Path) -> None:
        self.plan = new_run(url, storage, str(root / "local"), parallelism=1)
        self.batches = 0

    def batch(self, *, materializes: bool = False, write: Write | None = None) -> None:
        number = self.batches
        # Even attempts write bases, odd ones increments, see `Task`.
        attempt = 2 * number + self.increments
        Task(self.plan, "one", number, 0, attempt, write or remember(number), materializes).run()
        self.batches += 1

    increments = False

    @property
    def directory(self) -> Path:
        [directory] = self.plan.settings.local_directory.glob("*/subtask-0-1")
        return directory

    def bases(self) -> int:
        with self.plan.catalog.begin() as connection:
            statement = text("SELECT count(*) FROM cairn.segments WHERE kind <> 'changelog'")
            return int(connection.scalar(statement) or 0)

    def damage(self) -> None:
        """Makes another value of one entry, which no later batch reads."""
        close_all()
        behind_its_back(lambda t: t.put(UNREAD, b"damaged"))(self.directory)


UNREAD = entry_prefix(3, 9, b"unread")


def put_once(number: int) -> Write:
    def write(overlay: Overlay, groups: KeyGroupRange) -> None:
        remember(number)(overlay, groups)
        overlay.put(UNREAD, b"as it was")

    return write


@pytest.fixture
def job(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Job:
    return Job(metastore_url, tmp_storage, tmp_path)


@pytest.mark.parametrize("increments", [False, True], ids=["bases", "increments"])
def test_damaged_state_becomes_no_base_and_is_rebuilt_by_the_next_attempt(
    job: Job, increments: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2):
        job.batch(write=remember(number))
    job.batch(materializes=True)
    job.batch(write=put_once(3))
    job.batch()  # the one with the entry is the parent now, and local
    job.batch()
    before, job.increments = job.bases(), increments
    assert before
    job.damage()
    with pytest.raises(DamagedStateError):
        job.batch(materializes=True)
    assert job.bases() == before
    assert "rebuilt from storage" in caplog.text
    job.batch(materializes=True)
    assert job.bases() > before
    for _ in range(2):
        job.batch()
    expected = remembered(job.batches - 1) | {UNREAD: b"as it was"}
    with job.plan.catalog.begin() as connection:
        newest = connection.scalar(
            text("SELECT max(checkpoint_id) FROM cairn.checkpoints WHERE status = 'CONFIRMED'")
        )
    assert read_back(job.plan, int(newest or 0)) == expected


def test_a_batch_that_fails_at_damaged_state_leaves_it_rebuilt(job: Job) -> None:
    job.batch(write=put_once(0))
    job.batch()
    job.batch()
    job.damage()

    def decode(overlay: Overlay, groups: KeyGroupRange) -> None:
        if overlay.get(UNREAD) != b"as it was":
            raise ValueError("no such value")
        remember(3)(overlay, groups)

    with pytest.raises(DamagedStateError) as raised:
        job.batch(write=decode)
    assert isinstance(raised.value.__context__, ValueError)
    job.batch(write=decode)


def test_a_batch_that_fails_at_good_state_keeps_it(job: Job) -> None:
    job.batch()
    job.batch()
    identity = job.directory.joinpath("data.mdb").stat().st_ino

    def fail(overlay: Overlay, groups: KeyGroupRange) -> None:
        raise ValueError(f"the processor's own, at {groups}, {overlay}")

    for _ in range(2):
        with pytest.raises(ValueError, match="own"):
            job.batch(write=fail)
    job.batch()
    assert job.directory.joinpath("data.mdb").stat().st_ino == identity


@pytest.mark.parametrize("seed", range(8))
def test_bits_flipped_anywhere_end_in_the_right_state_and_in_no_base(job: Job, seed: int) -> None:
    """Each attempt in a process, as a flipped bit may kill whoever reads."""
    job.batch(write=put_once(0))
    for _ in range(3):
        job.batch()
    close_all()
    directory = job.directory
    chosen, file = random.Random(seed), directory / "data.mdb"
    data = bytearray(file.read_bytes())
    for _ in range(200):
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    file.write_bytes(data)

    def read_it_all() -> None:
        store = open_local(directory)
        with store.watched(), store.read() as reader:
            reader.verify()

    for _ in range(MOST_OPENINGS + 2):
        with in_a_process(read_it_all) as process:
            if process.exitcode == 0:
                break
    else:
        pytest.fail("it kills whoever reads it, for ever")
    job.batch()
    job.batch()
    with open_local(directory).read() as reader:
        found = dict(reader.range(GROUPS))
    assert found == remembered(job.batches - 1) | {UNREAD: b"as it was"}
