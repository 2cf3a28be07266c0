"""Changed and random bytes are refused by every reader; `make fuzz` does it a million times."""

from __future__ import annotations

import pytest

from tests.fuzz.cases import how_it_ends, run_cases
from tests.fuzz.readers import READERS

CASES = 250


@pytest.mark.parametrize("name", READERS)
def test_changed_bytes_give_no_error_but_corrupt_or_refused(name: str) -> None:
    ends = run_cases(READERS[name], 0, CASES)
    assert ends.surprises == {}
    assert ends.counts["corrupt"] > CASES / 3


@pytest.mark.parametrize("name", [name for name in READERS if name != "value"])
def test_the_bytes_that_are_changed_can_be_read(name: str) -> None:
    reader = READERS[name]
    assert {how_it_ends(reader, data) for data in reader.seeds()} == {"read"}
