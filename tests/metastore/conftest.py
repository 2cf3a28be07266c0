from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from cairn.catalog.catalog import dispose_engines
from cairn.catalog.embedded import resolve_url, stop
from tests.metastore.rows import Rows


@pytest.fixture
def rows(shared_metastore_url: str) -> Rows:
    """A job of the test's own, with its first run."""
    made = Rows(shared_metastore_url, job_id=f"clicks-{uuid4().hex[:8]}")
    made.job()
    return made


@pytest.fixture
def empty_directory() -> Iterator[Path]:
    """For an embedded metastore, which is stopped in the end.

    Not pytest's own directory, which no other user may enter: root runs it as `pgserver`.
    """
    made = Path(tempfile.mkdtemp(prefix="cairn-test-"))
    yield made
    dispose_engines()
    stop(f"embedded:{made}")
    shutil.rmtree(made)


@pytest.fixture(scope="session")
def initialised() -> Iterator[Path]:
    """What `initdb` makes, which takes 1 s."""
    made = Path(tempfile.mkdtemp(prefix="cairn-test-"))
    resolve_url(f"embedded:{made}")
    stop(f"embedded:{made}")
    yield made / "data"
    shutil.rmtree(made)


@pytest.fixture
def directory(empty_directory: Path, initialised: Path) -> Path:
    """One in which a server has been, which was stopped."""
    # `cp`, which keeps the owner: root runs it as another user.
    subprocess.run(["cp", "-a", str(initialised), str(empty_directory / "data")], check=True)
    return empty_directory
