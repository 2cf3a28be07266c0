"""What a reader of text can check of the metastore's functions, before a server runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

METASTORE = Path(__file__).resolve().parents[1] / "metastore"
FILES = sorted(METASTORE.glob("*/*.sql"))
HEAD = re.compile(r"^CREATE OR REPLACE FUNCTION.*?(?= AS \$\$|^RETURN|^BEGIN ATOMIC)", re.M | re.S)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_function_looks_for_names_in_the_catalog_before_the_session(file: Path) -> None:
    """Types and tables of the session come first otherwise: its user's code, with other rights."""
    for head in HEAD.findall(file.read_text()):
        if "LANGUAGE plpgsql" in head or "SECURITY DEFINER" in head or "search_path" in head:
            assert "SET search_path = pg_catalog, pg_temp" in head, head
