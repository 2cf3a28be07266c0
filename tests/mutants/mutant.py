"""Deliberate defects, one text of one file each, and the tests that have to notice them."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A defect: `before`, which stands in the file exactly once, is replaced by `after`.

    `tests` are names of test functions; at least one has to fail.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        """Returns a file's text with the defect.

        Raises:
            ValueError: the text to replace does not stand there exactly once, or nothing changes.
        """
        found = source.count(self.before)
        if found != 1 or self.before == self.after:
            raise ValueError(
                f"mutant {self.name!r}: its text stands in {self.file} {found} times, not once. "
                "Write the mutant anew for the code as it is"
            )
        return source.replace(self.before, self.after)

    def node_ids(self) -> list[str]:
        """Returns what pytest calls the tests.

        Raises:
            KeyError: there is no test of a name, or there are two.
        """
        return [f"{files_of_tests()[test]}::{test}" for test in self.tests]


@cache
def mutants() -> tuple[Mutant, ...]:
    """Returns all mutants, in the order of the files beside this one."""
    return tuple(
        Mutant(**{**one, "tests": tuple(one["tests"])})
        for file in sorted(Path(__file__).parent.glob("*.toml"))
        for one in tomllib.loads(file.read_text())["mutant"]
    )


@cache
def files_of_tests() -> dict[str, str]:
    """Returns the path of each test function's file from the root, for names that occur once."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append(file.relative_to(ROOT).as_posix())
    return {name: paths[0] for name, paths in found.items() if len(paths) == 1}
