"""Settings for a stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.streams.streams import Settings, write_source


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
