"""The root that the orphan sweep's tests share; a module whose job is another one has its own."""

from __future__ import annotations

import pytest

from tests.maintenance.sweeping import allow_any_share, cleaned_job, orphans_of, put
from tests.maintenance.synthetic import SyntheticJob


@pytest.fixture
def job(metastore_url: str, tmp_storage: str, monkeypatch: pytest.MonkeyPatch) -> SyntheticJob:
    """A job in whose root most objects may be orphans."""
    allow_any_share(monkeypatch)
    return cleaned_job(metastore_url, tmp_storage)


@pytest.fixture
def orphans(job: SyntheticJob) -> list[str]:
    """Paths of orphans of every kind, with their objects."""
    paths = orphans_of(job)
    put(job.store, *paths)
    return paths
