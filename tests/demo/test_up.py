"""`make up` beside one that is running already."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from demo.up import run_alone


def test_a_second_one_says_so_and_does_nothing_while_the_first_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def second() -> int:
        done.append("second")
        return 0

    def first() -> int:
        assert run_alone(tmp_path, second, Console(width=500)) == 1
        assert f"the platform is running already, in {tmp_path}" in capsys.readouterr().out
        return 0

    assert run_alone(tmp_path, first, Console()) == 0
    assert done == []
    assert run_alone(tmp_path, second, Console()) == 0
    assert done == ["second"]
