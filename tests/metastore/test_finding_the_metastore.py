"""How the command line and Airflow's workers find the metastore."""

from __future__ import annotations

import socket
import time

import pytest

from cairn.catalog.catalog import find_catalog
from cairn.errors import BadInputError, MetastoreError
from cairn.runtime.driver.job_spec import JobSpec
from cairn.settings import Settings


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


def test_a_plan_waits_for_the_metastore_no_longer_than_the_option_says() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    spec = JobSpec(
        name="words",
        storage="file:///nowhere",
        metastore=f"postgresql://nobody@127.0.0.1:{port}/none",
        parallelism=1,
        settings=Settings.from_options({"cairn.metastore.timeout": "1 s"}),
    )
    began_s = time.monotonic()
    with pytest.raises(MetastoreError, match=r"did not do it for 1 s"):
        spec.open_catalog()
    assert time.monotonic() - began_s < 20
