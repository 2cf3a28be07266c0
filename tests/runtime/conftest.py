"""Settings for a stream, executors that upload, and a gate to hold them at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.slow_s3 import SlowS3
from tests.runtime.streams import Settings, write_source
from tests.runtime.uploading import Uploading, maker


@pytest.fixture
def stream(tmp_path: Path, metastore_url: str, tmp_storage: str) -> Callable[..., Settings]:
    """Makes the settings of a stream over so many files, in directories of the test's own."""

    def make(files: int, **changes: object) -> Settings:
        facts: dict[str, object] = {
            "source": str(write_source(tmp_path / "source", files)),
            "storage": tmp_storage,
            "metastore": metastore_url,
            "spark_checkpoint": str(tmp_path / "spark-checkpoint"),
            "local_dir": str(tmp_path / "local"),
            **changes,
        }
        return Settings(**facts)  # type: ignore[arg-type]

    return make


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
