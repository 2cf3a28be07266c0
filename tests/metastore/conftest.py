from __future__ import annotations

import pytest

from tests.metastore.rows import Rows


@pytest.fixture
def rows(metastore_url: str) -> Rows:
    """A metastore with one job, `clicks-1a2b`, and its first run."""
    made = Rows(metastore_url)
    made.job()
    return made
