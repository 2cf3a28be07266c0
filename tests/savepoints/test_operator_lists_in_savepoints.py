"""Operator lists in manifests: a savepoint without them would lose them."""

from __future__ import annotations

import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from cairn.catalog.catalog import Catalog
from cairn.errors import CorruptSegmentError
from cairn.keygroups import KeyGroupRange
from cairn.maintenance.cleanup import cleanup_job
from cairn.manifest import decode, encode
from cairn.savepoints.rebuild import rebuild
from cairn.savepoints.start_from_manifest import restore
from cairn.state.operator_lists import Lists
from metastore.enums import SegmentKind
from tests.runtime.task.list_stream import (
    BOTH,
    SPLIT_ID,
    UNION_ID,
    Subtasks,
    stored_lists,
    together,
)
from tests.runtime.tasks import remember, remembered
from tests.savepoints.jobs import Query
from tests.savepoints.test_manifest_format import MANIFEST, SEGMENT


class Notes:
    """Changes each subtask's lists in every batch and knows what it started the batch with."""

    def __init__(self) -> None:
        self.started: Subtasks = {}
        self.after: Subtasks = {}
        self._batch = 0

    def of_batch(self, batch_id: int) -> Notes:
        self._batch, self.started, self.after = batch_id, {}, {}
        return self

    def __call__(self, subtask: int, lists: Lists) -> None:
        self.started[subtask] = deepcopy(lists)
        element = b"%d-%d" % (self._batch, subtask)
        lists.setdefault(SPLIT_ID, []).append(element)
        lists[UNION_ID] = [element]
        self.after[subtask] = deepcopy(lists)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def source(metastore_url: str, tmp_storage: str, tmp_path: Path, notes: Notes) -> Query:
    """A query with two subtasks after three batches; checkpoint 2 is a savepoint."""
    query = Query(metastore_url, tmp_storage, str(tmp_path / "local"), interval=1)
    query.start(2, states=BOTH)
    for batch_id in range(3):
        query.batch(batch_id, change_lists=notes.of_batch(batch_id))
        if batch_id == 1:
            saved = notes.after
    assert query.savepoint().checkpoint_id == 2
    notes.after = saved
    return query


def assert_taken_over(started: Subtasks, saved: Subtasks) -> None:
    assert together(started, SPLIT_ID) == together(saved, SPLIT_ID)
    union = together(saved, UNION_ID)
    assert all(lists[UNION_ID] == union for lists in started.values())


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_a_job_that_is_restored_from_a_savepoint_starts_with_its_lists(
    source: Query, other_url: str, tmp_path: Path, notes: Notes, parallelism: int
) -> None:
    saved, origin = notes.after, source.origin(2)
    (tmp_path / "target").mkdir()
    target = Query(other_url, (tmp_path / "target").as_uri(), str(tmp_path / "local-2"), "again")
    target.start(parallelism, states=BOTH, origin=origin.manifest)
    restore(
        target.catalog,
        origin,
        target.store,
        run=target.plan.ref,
    )
    shutil.rmtree(source.root)
    assert stored_lists(target.plan, 2) == saved
    target.batch(0, change_lists=notes.of_batch(2), write=remember(2))
    assert_taken_over(notes.started, saved)
    after = notes.after
    target.batch(1, change_lists=notes.of_batch(3), write=remember(3))
    assert notes.started == after
    assert stored_lists(target.plan, 4) == notes.after
    assert target.state(4) == remembered(4)
    for batch_id in (2, 3):
        target.batch(batch_id, change_lists=notes.of_batch(batch_id), write=remember(batch_id + 2))
    target.age_intents()
    cleanup_job(target.catalog, target.job)
    assert stored_lists(target.plan, 2) == {}, "its checkpoint is subsumed"


@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_query_continues_with_its_lists_after_the_metastore_was_rebuilt(
    source: Query, other_url: str, notes: Notes, parallelism: int
) -> None:
    saved = notes.after
    rebuild(Catalog(other_url), source.storage, takes_over=True)
    query = Query(other_url, source.storage, source.local_dir, interval=1)
    query.start(parallelism, states=BOTH)
    assert stored_lists(query.plan, 2) == saved
    assert together(stored_lists(query.plan, 1), SPLIT_ID) == [b"0-0", b"0-1"]
    last = query.batch(2, change_lists=notes.of_batch(2))
    assert_taken_over(notes.started, saved)
    assert stored_lists(query.plan, last) == notes.after


def test_lists_in_a_manifest_are_of_its_checkpoint_alone() -> None:
    lists = replace(SEGMENT, kind=SegmentKind.OPERATOR, first_checkpoint=7, as_of_checkpoint=7)
    whole = replace(MANIFEST, segments=(lists,))
    [(subtask, handle)] = decode(encode(whole), file="m").handles()
    assert (subtask, handle.first_checkpoint, handle.released_checkpoint) == (1, 7, 8)
    assert handle.key_groups == KeyGroupRange(4, 8)
    older = replace(MANIFEST, segments=(replace(lists, first_checkpoint=6),))
    with pytest.raises(CorruptSegmentError, match="no part of its checkpoint"):
        decode(encode(older), file="m")
