"""What the subtasks of another parallelism read of a job's state, and that it is that state."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Connection, text

from benchmarks.restore_local import CountingStore
from cairn.catalog.job.segments import segments_at
from cairn.errors import CorruptSegmentError, FencedError, StorageError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.layout import manifest_file
from cairn.manifest import decode
from cairn.runtime.executor import fetched_once
from cairn.runtime.executor.fetched_once import FetchedOnce, shared_ranges
from cairn.runtime.executor.parent_state import parent_state
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.executor.task_manager import FETCHED, TaskManager
from cairn.savepoints.write_manifest import pin
from cairn.state.entries import entry_prefix
from cairn.state.view import Overlay
from cairn.storage import open_store
from metastore.enums import PinKind, SegmentKind
from tests.runtime.tasks import EVERYTHING, MAX_PARALLELISM, QUERY, Task, new_run, run_together

KEYS, VALUE_BYTES = 8_000, 500
MOST = 1.3


@dataclass
class Changing:
    """Writes all keys in the first batch and a share of them in each other; knows the state."""

    keys: int = KEYS
    state: dict[bytes, bytes] = field(default_factory=dict)
    batches: int = 0

    def changed_keys(self) -> list[bytes]:
        chance, count = np.random.default_rng(self.batches), self.keys
        numbers = range(count) if self.batches == 0 else chance.choice(count, count // 3).tolist()
        return [entry_prefix(one % MAX_PARALLELISM, 1, b"%d" % one) for one in sorted(set(numbers))]

    def run(self, plan: RunContext, *, materializes: bool = False) -> None:
        chance, keys = np.random.default_rng(100 + self.batches), self.changed_keys()
        changed = {key: chance.bytes(VALUE_BYTES) for key in keys}

        def write(overlay: Overlay, groups: KeyGroupRange) -> None:
            for key, value in changed.items():
                if int.from_bytes(key[:2], "big") in groups:
                    overlay.put(key, value)

        # Every other attempt makes an increment.
        facts = ("one", self.batches)
        run_together(
            [
                Task(plan, *facts, subtask, self.batches, write, materializes)
                for subtask in range(plan.parallelism)
            ]
        )
        self.state |= changed
        self.batches += 1


def restored(
    plan: RunContext, batch_id: int, store: CountingStore, executor: str = "new-{}"
) -> dict[bytes, bytes]:
    """Returns the state that all subtasks restore into empty local state."""
    state: dict[bytes, bytes] = {}
    batch = plan.batch(QUERY, batch_id)
    for subtask in range(plan.parallelism):
        manager = TaskManager(plan, executor.format(subtask))
        start = manager.begin(batch)
        context = SubtaskContext(manager=manager, store=store, batch=batch, subtask=subtask)
        with parent_state(context, start) as reader:
            found = dict(reader.range(EVERYTHING))
        own = plan.key_groups(subtask)
        assert all(int.from_bytes(key[:2], "big") in own for key in found)
        state |= found
    return state


def held(plan: RunContext, checkpoint_id: int) -> list[SegmentHandle]:
    return plan.catalog.run(
        "reading what a checkpoint holds",
        lambda c: segments_at(c, plan.job_id, checkpoint_id, EVERYTHING),
    )


def written(
    url: str,
    storage: str,
    local: Path,
    parallelism: int,
    options: Mapping[str, object] | None = None,
    keys: int = KEYS,
) -> Changing:
    plan = new_run(url, storage, str(local), parallelism=parallelism, options=options)
    history = Changing(keys=keys)
    for materializes in (False, True, False, True, False):
        history.run(plan, materializes=materializes)
    return history


def merging(name: str) -> Mapping[str, object]:
    return {
        "off": {"cairn.file-merging.enabled": "false"},
        "within": {},
        "across": {"cairn.file-merging.across-checkpoint-boundary": "true"},
    }[name]


@pytest.mark.parametrize("merges", ["off", "within", "across"])
@pytest.mark.parametrize(("before", "after"), [(1, 8), (8, 1), (2, 3), (3, 2)])
def test_subtasks_of_another_parallelism_together_read_at_most_1_3_times_the_state(
    metastore_url: str, tmp_storage: str, tmp_path: Path, before: int, after: int, merges: str
) -> None:
    given, options = (metastore_url, tmp_storage), merging(merges)
    history = written(*given, tmp_path / "old", before, options)
    plan = new_run(*given, str(tmp_path / "new"), parallelism=after, options=options)
    store = CountingStore(open_store(tmp_storage))
    assert restored(plan, history.batches, store) == history.state
    handles = held(plan, history.batches)
    kinds = {handle.kind for handle in handles}
    assert {SegmentKind.KEYED_FULL, SegmentKind.CHANGELOG} <= kinds
    reads = store.reads()
    assert reads.size_bytes <= MOST * sum(handle.size_bytes for handle in handles)
    assert reads.requests <= 2 * (len(handles) + max(before, after) * len(kinds) * 2)


def test_a_damaged_block_is_never_part_of_a_restored_state(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    history = written(metastore_url, tmp_storage, tmp_path / "old", 1)
    plan = new_run(metastore_url, tmp_storage, str(tmp_path / "new"), parallelism=4)
    [base, *_] = [one for one in held(plan, 5) if one.kind is SegmentKind.KEYED_FULL]
    path = tmp_path / "storage" / base.path
    if not path.exists():
        [path] = tmp_path.rglob(Path(base.path).name)
    data = bytearray(path.read_bytes())
    data[base.offset + base.size_bytes // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptSegmentError, match="are not what was written"):
        restored(plan, history.batches, CountingStore(open_store(tmp_storage)))


def small(url: str, storage: str, directory: Path) -> tuple[Changing, RunContext]:
    """Returns a history whose segments are small, and its run at another parallelism."""
    history = written(url, storage, directory / "old", 1, keys=300)
    plan = new_run(url, storage, str(directory / "new"), parallelism=4)
    return history, plan


def test_what_subtasks_of_an_executor_need_is_fetched_once(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    history, plan = small(metastore_url, tmp_storage, tmp_path)
    store = CountingStore(open_store(tmp_storage))
    assert restored(plan, history.batches, store, "one") == history.state
    handles = held(plan, history.batches)
    assert all(handle.index is None for handle in handles)
    reads = store.reads()
    assert (reads.requests, reads.size_bytes) == (len(handles), sum(h.size_bytes for h in handles))


def test_what_was_fetched_goes_with_the_next_batch(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    history, plan = small(metastore_url, tmp_storage, tmp_path)
    restored(plan, history.batches, CountingStore(open_store(tmp_storage)), "one")
    manager = TaskManager(plan, "one")
    assert any((manager.directory / FETCHED).iterdir())
    batch_id = history.batches

    def nothing(_: Overlay, __: KeyGroupRange) -> None:
        """Changes nothing."""

    run_together([Task(plan, "one", batch_id, one, 1, nothing) for one in range(4)])
    manager.begin(plan.batch(QUERY, batch_id + 1))
    assert not (manager.directory / FETCHED).exists()


def test_a_kept_range_that_was_damaged_is_fetched_again(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    history, plan = small(metastore_url, tmp_storage, tmp_path)

    class Damaging(CountingStore):
        def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
            for file in (TaskManager(plan, "one").directory / FETCHED).glob("*"):
                # Not what is being written meanwhile, which gets another name.
                if file.suffix != ".draft":
                    file.write_bytes(file.read_bytes()[:-1] + b"?")
            return super().get(path, offset, size_bytes)

    assert restored(plan, history.batches, Damaging(open_store(tmp_storage)), "one") == (
        history.state
    )


def test_a_bad_answer_of_the_store_is_kept_for_nobody(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    history, plan = small(metastore_url, tmp_storage, tmp_path)
    handles = held(plan, history.batches)
    wrong = [(handles[0].path, handles[0].offset)]

    class WrongOnce(CountingStore):
        def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
            data = super().get(path, offset, size_bytes)
            if (path, offset) not in wrong:
                return data
            wrong.clear()
            return data[:-1] + bytes([data[-1] ^ 1])

    store = WrongOnce(open_store(tmp_storage))
    with pytest.raises(CorruptSegmentError, match="is not what was written"):
        restored(plan, history.batches, store, "one")
    kept = (TaskManager(plan, "one").directory / FETCHED).glob("*")
    digests = {hashlib.sha256(file.read_bytes()).hexdigest() for file in kept}
    assert digests <= {handle.sha256 for handle in handles[1:]}
    assert restored(plan, history.batches, store, "one") == history.state
    assert store.reads().requests == len(handles) + 1, "the good answers were kept"


def test_a_full_disk_keeps_nothing_for_others_and_stops_nobody(
    metastore_url: str, tmp_storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, plan = small(metastore_url, tmp_storage, tmp_path)

    def refuse(path: Path, data: bytes) -> None:
        raise StorageError("the disk is full", file=str(path))

    monkeypatch.setattr(fetched_once, "write_whole", refuse)
    store = CountingStore(open_store(tmp_storage))
    assert restored(plan, history.batches, store, "one") == history.state
    assert store.reads().requests == 4 * len(held(plan, history.batches))


def test_a_fenced_run_does_not_bring_its_directory_back(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    history, plan = small(metastore_url, tmp_storage, tmp_path)
    manager, [one, *_] = TaskManager(plan, "one"), held(plan, history.batches)
    handle = replace(one, key_groups=EVERYTHING)

    class Fencing(CountingStore):
        def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
            shutil.rmtree(manager.directory)
            return super().get(path, offset, size_bytes)

    store = FetchedOnce(
        Fencing(open_store(tmp_storage)), manager, shared_ranges([handle], KeyGroupRange(0, 1))
    )
    for _ in ("while it is read", "before"):
        with pytest.raises(FencedError):
            store.get(handle.path, handle.offset, handle.size_bytes)
        assert not manager.directory.exists()


def test_a_group_commit_of_small_segments_has_no_column_for_indexes(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    _, plan = small(metastore_url, tmp_storage, tmp_path)

    def indexed_commits(connection: Connection) -> object:
        return connection.execute(
            text(
                "SELECT count(*) FROM cairn.group_commits"
                " WHERE index_sizes_bytes IS NOT NULL OR index_sha256s IS NOT NULL"
            )
        ).scalar_one()

    assert plan.catalog.run("counting", indexed_commits) == 0


def test_the_manifest_has_the_indexes(metastore_url: str, tmp_storage: str, tmp_path: Path) -> None:
    history = written(metastore_url, tmp_storage, tmp_path / "old", 1)
    plan = new_run(metastore_url, tmp_storage, str(tmp_path / "new"), parallelism=1)
    restored(plan, history.batches, CountingStore(open_store(tmp_storage)))
    pinned = pin(plan.catalog, plan.job, None, kind=PinKind.SAVEPOINT)
    path = manifest_file(pinned.job_id, pinned.checkpoint_id)
    found = decode(open_store(tmp_storage).get(path), file=path)
    handles = {handle.segment_id: handle.index for _, handle in found.handles()}
    assert handles == {one.segment_id: one.index for one in held(plan, pinned.checkpoint_id)}
    assert None not in handles.values()
