"""How a Dag's task finds the metastore."""

from __future__ import annotations

import pytest

from cairn.airflow_ext.metastore import find_catalog
from cairn.errors import BadInputError


def test_the_variable_takes_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAIRN_METASTORE", "postgresql://user@host:5432/cairn")
    assert find_catalog().url == "postgresql+psycopg2://user@host:5432/cairn"


def test_a_missing_variable_is_named_with_its_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAIRN_METASTORE", raising=False)
    with pytest.raises(BadInputError, match=r"CAIRN_METASTORE is not set.*embedded:<directory>"):
        find_catalog()
