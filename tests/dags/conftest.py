"""A throw-away Airflow in one process for all tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dags.airflow_process import ANSWER

ROOT = Path(__file__).resolve().parents[2]


class Airflow:
    """Asks the process, which runs what it is asked one after the other."""

    def __init__(self, home: Path) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW_")}
        self._stderr = (home / "stderr.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.dags.airflow_process", str(ROOT / "dags")],
            cwd=ROOT,
            env={
                **inherited,
                "AIRFLOW_HOME": str(home),
                "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "PYTHONPATH": str(ROOT),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self.facts = self._answer()
        """What it sees in `dags/`."""

    def ask(self, do: str, given: Any, metastore: str = "") -> Any:
        """Returns its answer."""
        assert self._process.stdin is not None
        request = {"do": do, "given": given, "metastore": metastore}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        """Kills the process, whose database is thrown away."""
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        printed = []
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
            printed.append(line)
        self._stderr.seek(0)
        raise AssertionError("".join(printed) + self._stderr.read())


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    process = Airflow(tmp_path_factory.mktemp("airflow"))
    yield process
    process.stop()
