"""Executors that upload, and a gate to hold them at."""

from __future__ import annotations

import os
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


@pytest.fixture(scope="session")
def s3() -> Iterator[tuple[SlowS3, dict[str, str]]]:
    """A server for the session, with its environment: to start one, and a client, takes 0.5 s."""
    before = dict(os.environ)
    with SlowS3() as server:
        settings = {name: v for name, v in os.environ.items() if before.get(name) != v}
        os.environ.clear()
        os.environ.update(before)
        yield server, settings


@pytest.fixture(params=["posix", "s3"])
def storage(
    request: pytest.FixtureRequest, tmp_storage: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The URL of an empty storage: a test that asks for it runs on either kind."""
    if request.param == "posix":
        return tmp_storage
    server, settings = request.getfixturevalue("s3")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    server.empty()
    return str(server.url)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A gate that opens at the end at the latest, so that no thread is left behind."""
    made = threading.Event()
    yield made
    made.set()
