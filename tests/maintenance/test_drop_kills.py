"""Dropping a job under kill -9: at every commit, and between deletes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from cairn.maintenance.drop import drop_job, find_job_to_drop
from cairn.storage.posix import PosixStore
from tests.maintenance.dropping import drop, ended_stream, root, rows_of_job
from tests.runtime.merging_stream import Stream


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    return ended_stream(metastore_url, tmp_storage, tmp_path / "local")


@contextmanager
def dying_at_commit(number: int) -> Iterator[None]:
    """Ends what runs right before a commit, as a kill does."""
    left = [number]

    def count(_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise InterruptedError

    event.listen(Engine, "commit", count)
    try:
        yield
    finally:
        event.remove(Engine, "commit", count)


def test_killed_before_any_commit_the_next_call_goes_on(stream: Stream) -> None:
    catalog, job = stream.plan.catalog, find_job_to_drop(stream.plan.catalog, "words")
    for number in range(1, 100):
        try:
            with dying_at_commit(number):
                drop_job(catalog, job)
        except InterruptedError:
            continue
        break
    assert number > 10
    assert rows_of_job(stream) == {}
    assert not root(stream).exists()


def test_killed_between_two_deletes_the_next_call_goes_on(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_many = PosixStore.delete_many

    def dies(store: PosixStore, paths: Sequence[str]) -> dict[str, str]:
        delete_many(store, paths[:1])
        raise InterruptedError

    monkeypatch.setattr(PosixStore, "delete_many", dies)
    with pytest.raises(InterruptedError):
        drop(stream)
    monkeypatch.undo()
    assert rows_of_job(stream)
    assert drop(stream).is_gone
    assert not root(stream).exists()
