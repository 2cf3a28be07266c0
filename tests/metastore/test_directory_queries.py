"""Finding empty directories costs the files of a job once, however many directories it has."""

# ruff: noqa: S608 - names of fixtures

from __future__ import annotations

import time

import pytest
from sqlalchemy import text

from cairn.catalog.job.directories import given_up_directories, kept_directories
from tests.metastore.rows import Rows

pytestmark = pytest.mark.slow

DIRECTORIES = 250
FILES = 60_000


def test_empty_directories_are_found_among_many_files(metastore_url: str) -> None:
    rows = Rows(metastore_url)
    rows.job()
    root = f"{rows.job_id}/taskmanager-owned"
    rows.execute(text("UPDATE cairn.jobs SET file_retention_ms = 0"))
    rows.execute(
        text(
            "INSERT INTO cairn.directories (job_id, path, scope, epoch)"
            f" SELECT '{rows.job_id}', '{root}/tm-' || n, 'taskmanager', 1"
            f" FROM generate_series(1, {DIRECTORIES}) AS n"
        )
    )
    rows.execute(text("UPDATE cairn.directories SET status = 'UNCLAIMED', unclaimed_at = now()"))
    rows.execute(
        text(
            "INSERT INTO cairn.physical_files (file_id, job_id, epoch, path, scope)"
            f" SELECT id, '{rows.job_id}', 1, '{root}/tm-' || 1 + n % {DIRECTORIES - 2} || '/'"
            " || id || '.seg', 'taskmanager' FROM (SELECT gen_random_uuid() AS id, n"
            f" FROM generate_series(1, {FILES}) AS n) AS made"
        )
    )
    began = time.monotonic()
    # Twice: without statistics, and with.
    for _ in range(2):
        found = rows.catalog.run(
            "reading", lambda c: given_up_directories(c, rows.job_id, limit=1000)
        )
        assert found == [f"{root}/tm-{n}" for n in (DIRECTORIES - 1, DIRECTORIES)]
        rows.execute(text("ANALYZE cairn.physical_files, cairn.directories"))
    assert time.monotonic() - began < 1.5
    empty = [*found, f"{root}/none"]
    asked = [*empty, f"{root}/tm-7"]
    kept = rows.catalog.run("reading", lambda c: kept_directories(c, rows.job_id, asked))
    assert kept == {*found, f"{root}/tm-7"}, "one that is given up is the cleanup's"
