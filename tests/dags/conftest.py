"""A throw-away Airflow: everything of it runs in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RunPython = Callable[..., str]


@pytest.fixture(scope="session")
def run_in_airflow(tmp_path_factory: pytest.TempPathFactory) -> RunPython:
    """Runs Python with arguments in an Airflow home of the session and returns its output."""
    home = tmp_path_factory.mktemp("airflow")

    def run(*arguments: str, **variables: str) -> str:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW_")}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={
                **inherited,
                "AIRFLOW_HOME": str(home),
                "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "PYTHONPATH": str(ROOT),
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
