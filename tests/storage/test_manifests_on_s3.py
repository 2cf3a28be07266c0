"""Savepoints, a restored job and a rebuilt metastore with everything on S3."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cairn.catalog.catalog import Catalog
from cairn.maintenance.cleanup import cleanup_job
from cairn.savepoints.rebuild import rebuild
from cairn.savepoints.start_from_manifest import restore
from tests.runtime.tasks import remember, remembered
from tests.savepoints.jobs import Query


def test_a_job_is_restored_and_a_metastore_rebuilt_from_s3(
    s3_url: str,
    metastore_url: str,
    other_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Query(metastore_url, s3_url, str(tmp_path / "local"), interval=1).start()
    for batch_id in range(4):
        source.batch(batch_id, materializes=[0])
    source.savepoint()
    source.savepoint(2)
    monkeypatch.setenv("CAIRN_STORAGES", s3_url)
    cleanup_job(source.catalog, source.job)
    again = Query(metastore_url, s3_url, str(tmp_path / "local"), job="again")
    origin = source.origin(3)
    again.start(3, origin=origin.manifest)
    restore(
        again.catalog,
        origin,
        again.store,
        run=again.plan.ref,
    )
    assert again.state(again.batch(0, write=remember(3))) == remembered(4)

    [back] = rebuild(Catalog(other_url), s3_url).jobs
    assert (back.job, back.newest_checkpoint) == ("words", 3), "the other has no manifest"
    lost = dataclasses.replace(source.plan, catalog=Catalog(other_url))
    source.plan = lost
    assert source.state(3) == remembered(3)
    assert source.state(2) == remembered(2)
