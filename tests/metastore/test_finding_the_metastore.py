"""How the command line and Airflow's workers find the metastore."""

from __future__ import annotations

import pytest

from cairn.catalog.catalog import find_catalog
from cairn.errors import BadInputError


def test_the_variable_takes_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAIRN_METASTORE", "postgresql://user@host:5432/cairn")
    assert find_catalog().url == "postgresql+psycopg2://user@host:5432/cairn"


def test_what_is_given_comes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAIRN_METASTORE", "postgresql://user@host:5432/cairn")
    assert find_catalog("postgresql://other/one").url == "postgresql+psycopg2://other/one"


def test_a_missing_variable_is_named_with_its_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAIRN_METASTORE", raising=False)
    with pytest.raises(BadInputError, match=r"set CAIRN_METASTORE where.*embedded:<directory>"):
        find_catalog()


def test_a_catalog_shows_no_url() -> None:
    assert "secret" not in repr(find_catalog("postgresql://user:secret@host/cairn"))
