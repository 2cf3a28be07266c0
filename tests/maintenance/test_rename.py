"""Renaming a job: it goes on under its new name, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cairn.cli import main
from cairn.errors import BadInputError, RefusedError
from cairn.maintenance.drop import find_job_to_drop
from tests.maintenance.dropping import ended_stream, rename
from tests.runtime.merging_stream import Stream
from tests.runtime.tasks import new_run


@pytest.fixture
def stream(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Stream:
    return ended_stream(metastore_url, tmp_storage, tmp_path / "local")


def test_a_renamed_job_goes_on_under_its_new_name_with_its_state(
    stream: Stream, tmp_path: Path
) -> None:
    rename(stream, "words", "letters")
    rename_again = find_job_to_drop(stream.plan.catalog, "letters").job_id
    assert rename_again == stream.plan.job_id
    local = str(tmp_path / "local")
    stream.plan = new_run(stream.url, stream.storage, local, job="letters", parallelism=2)
    assert stream.plan.job_id == rename_again
    stream.batch()
    stream.assert_whole()


def test_a_query_that_starts_under_the_old_name_is_refused_at_its_first_batch(
    stream: Stream,
) -> None:
    rename(stream, "words", "letters")
    stream.restart(parallelism=2)
    with pytest.raises(RefusedError, match="batch"):
        stream.batch()


def test_a_name_that_is_taken_or_that_no_job_may_have_is_refused(
    stream: Stream, tmp_path: Path
) -> None:
    new_run(stream.url, stream.storage, str(tmp_path / "o"), job="other")
    with pytest.raises(BadInputError, match="there is a job 'other' already"):
        rename(stream, "words", "other")
    for name in ("", "a\nb", "x" * 256):
        with pytest.raises(BadInputError, match="1 to 255 printable characters"):
            rename(stream, "words", name)
    rename(stream, "words", "words")


def test_the_command_renames_a_job(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rename", "words", "letters", "--metastore", stream.url]) == 0
    assert main(["rename", "words", "letters", "--metastore", stream.url]) == 2
    assert "no job 'words'; there are: letters" in capsys.readouterr().err
