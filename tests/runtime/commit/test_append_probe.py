"""A storage of open files is probed: a reader has to see what was appended."""

from __future__ import annotations

from pathlib import Path

import pytest

from cairn import Job
from cairn.errors import BadInputError
from cairn.storage.posix import PosixStore


def job(storage: str, **options: object) -> Job:
    given = {f"cairn.file-merging.{key.replace('_', '-')}": value for key, value in options.items()}
    return Job(
        "words", storage=storage, metastore="embedded:/nowhere", parallelism=1, options=given
    )


def test_a_directory_is_probed_and_nothing_is_left(tmp_storage: str) -> None:
    job(tmp_storage, across_checkpoint_boundary=True).spec.check_storage()
    assert list(PosixStore(Path(tmp_storage.removeprefix("file://"))).list("")) == []


class ClosedStore(PosixStore):
    """Shows what is appended to an object only once its writer has closed it."""

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        return super().get(path, offset, size_bytes)[:48]


def test_a_storage_that_hides_an_open_files_bytes_is_refused_by_the_options_name(
    tmp_storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cairn.storage.PosixStore", ClosedStore)
    job(tmp_storage).spec.check_storage()
    job(tmp_storage, across_checkpoint_boundary=True, enabled=False).spec.check_storage()
    with pytest.raises(BadInputError, match="across-checkpoint-boundary is true, but storage"):
        job(tmp_storage, across_checkpoint_boundary=True).spec.check_storage()
