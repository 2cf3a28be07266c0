from __future__ import annotations

from uuid import uuid4

import pytest

from tests.metastore.rows import Rows


@pytest.fixture
def rows(shared_metastore_url: str) -> Rows:
    """A job of the test's own, with its first run."""
    made = Rows(shared_metastore_url, job_id=f"clicks-{uuid4().hex[:8]}")
    made.job()
    return made
