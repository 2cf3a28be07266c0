from __future__ import annotations

from pathlib import Path

import pytest

from tests.savepoints.jobs import Query


@pytest.fixture
def query(metastore_url: str, tmp_storage: str, tmp_path: Path) -> Query:
    """A query of one run with two subtasks; no batch has begun."""
    return Query(metastore_url, tmp_storage, str(tmp_path / "local")).start()
