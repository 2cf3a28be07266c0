"""A draft of a revision is what the models have and the metastore lacks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sqlalchemy import text

from cairn.catalog import migrate
from cairn.catalog.catalog import Catalog
from cairn.catalog.migrate import draft_revision, head_revision
from metastore.models import SCHEMA, Base

ROOT = Path(__file__).resolve().parents[1]


def test_a_draft_follows_the_newest_revision_and_makes_what_is_missing(
    metastore_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "metastore" / "migrations", tmp_path / "migrations")
    monkeypatch.setattr(migrate, "files", lambda _: tmp_path)
    catalog, newest = Catalog(metastore_url), head_revision()
    missing = next(
        str(index.name) for table in Base.metadata.sorted_tables for index in table.indexes
    )
    catalog.run("dropping an index", lambda c: c.execute(text(f"DROP INDEX {SCHEMA}.{missing}")))

    draft = draft_revision(catalog, "one more")
    code = draft.read_text()
    compile(code, draft, "exec")
    assert draft.parent == tmp_path / "migrations" / "versions"
    assert f"down_revision = '{newest}'" in code
    assert f"op.create_index('{missing}'" in code
    assert code.count("op.") == 1
