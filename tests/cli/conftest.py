from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cairn.cli import main
from tests.cli.stateful_job import StatefulJob


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def cairn(
    metastore_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Runs the command with the test's metastore in the environment."""
    monkeypatch.setenv("CAIRN_METASTORE", metastore_url)

    def run(*arguments: str) -> Outcome:
        code = main(arguments)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def job(metastore_url: str, tmp_storage: str) -> StatefulJob:
    return StatefulJob(metastore_url, tmp_storage).register()
