"""Local files are their user's alone, below directories that nobody else can change."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cairn.errors import RefusedError
from cairn.runtime.executor.private_files import require_private
from tests.runtime.tasks import Task, new_run, remember

OTHER = 12345
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_local_files_are_readable_by_their_user_alone_whatever_the_umask(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    root = tmp_path / "local"
    with umask(0):
        plan = new_run(metastore_url, tmp_storage, str(root), parallelism=1)
        for number in range(3):
            Task(plan, "one", number, 0, number, remember(number)).run()
    found = [root, *root.rglob("*")]
    assert len(found) > 20
    open_to_others = [str(path) for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert open_to_others == []


def test_a_job_directory_that_was_made_readable_is_made_private(tmp_path: Path) -> None:
    job = tmp_path / "local" / "job"
    job.mkdir(parents=True)
    job.chmod(0o755)
    require_private(tmp_path / "local", job)
    assert stat.S_IMODE(job.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
@pytest.mark.parametrize("which", ["above", "above/local", "above/local/job"])
def test_a_directory_that_others_may_write_to_is_refused(
    tmp_path: Path, which: str, mode: int
) -> None:
    job = tmp_path / "above" / "local" / "job"
    job.mkdir(parents=True)
    (tmp_path / which).chmod(mode)
    with pytest.raises(RefusedError, match=rf"{which} may be written to by others.*chmod go-w"):
        require_private(job.parent, job)
    (tmp_path / which).chmod(0o755)
    require_private(job.parent, job)


def test_a_directory_for_all_is_taken_if_they_cannot_replace_what_is_in_it(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o1777)
    require_private(above / "local", above / "local" / "job")
    assert stat.S_IMODE((above / "local").stat().st_mode) == 0o700


@AS_ROOT
@pytest.mark.parametrize("which", ["above", "above/local", "above/local/job"])
def test_a_directory_of_another_user_is_refused(tmp_path: Path, which: str) -> None:
    job = tmp_path / "above" / "local" / "job"
    job.mkdir(parents=True)
    os.chown(tmp_path / which, OTHER, OTHER)
    with pytest.raises(RefusedError, match=rf"{which} belongs to user {OTHER}.*cairn.local-dir"):
        require_private(job.parent, job)


@AS_ROOT
def test_a_link_of_another_user_is_refused_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    require_private(link / "mine", link / "mine" / "job")
    os.lchown(link, OTHER, OTHER)
    with pytest.raises(RefusedError, match="symbolic link"):
        require_private(link / "local", link / "local" / "job")


def test_what_a_link_leads_to_is_looked_at(tmp_path: Path) -> None:
    real = tmp_path / "open" / "real"
    real.mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(real)
    with pytest.raises(RefusedError, match="open may be written to"):
        require_private(link / "local", link / "local" / "job")
