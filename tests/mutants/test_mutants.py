"""The mutants fit the code and the tests as they are. `make mutants` tries them."""

from __future__ import annotations

import re

import pytest

from tests.mutants.mutant import ROOT, Mutant, mutants

RULES = ROOT / "tests" / "mutants" / "rules.md"


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_its_tests_exist(mutant: Mutant) -> None:
    file = ROOT / mutant.file
    assert mutant.applied(file.read_text()) != file.read_text()
    assert mutant.node_ids()


def test_mutants_have_names_of_their_own() -> None:
    names = [mutant.name for mutant in mutants()]
    assert len(set(names)) == len(names)


def test_each_rule_of_maintenance_is_broken_on_purpose() -> None:
    table = re.findall(r"^\| (\d+): [^|]+ \| (.+) \|$", RULES.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in table] == list(range(1, 14))
    known = {mutant.name for mutant in mutants()}
    for number, cell in table:
        named = re.findall(r"\*([^*]+)\*", cell)
        assert named, f"rule {number} has no mutant"
        assert set(named) <= known, number
