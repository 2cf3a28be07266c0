"""Executors that upload, and a gate to hold them at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.slow_s3 import SlowS3
from tests.runtime.commit.uploading import Uploading, maker


@pytest.fixture
def uploads(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Callable[..., Uploading]:
    """Makes an executor in its first batch from settings and the store that it writes to."""
    return maker(metastore_url, tmp_storage, tmp_path / "local")


@pytest.fixture(params=["posix", "s3"])
def storage(request: pytest.FixtureRequest, tmp_storage: str) -> Iterator[str]:
    """The URL of an empty storage: a test that asks for it runs on either kind."""
    if request.param == "posix":
        yield tmp_storage
        return
    with SlowS3() as server:
        yield server.url


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A gate that opens at the end at the latest, so that no thread is left behind."""
    made = threading.Event()
    yield made
    made.set()
