"""The model of maintenance at random; `make soak` runs it for as long as one likes."""

from __future__ import annotations

import os
import random

import pytest

from tests.model.machine import Maintained
from tests.model.soak import play

STEPS = 2500
"""Of each test, so that workers share them."""
JOBS = 6
"""Of a seed, which is printed when something does not hold."""


@pytest.mark.slow
@pytest.mark.parametrize("share", range(4))
def test_whatever_is_interleaved_no_needed_byte_goes_and_no_useless_one_stays(
    shared_metastore_url: str, share: int
) -> None:
    # What decides over a change plays the same each time.
    given = "1" if "CI" in os.environ else os.environ.get("CAIRN_TEST_SEED")
    seed = random.randrange(2**32) if given is None else int(given) + share * 1000
    before = Maintained.total_steps
    while Maintained.total_steps - before < STEPS:
        print(f"seed {seed}, {JOBS} jobs")
        play(shared_metastore_url, seed, JOBS)
        seed += 1
    print(f"{Maintained.total_steps - before} steps; {dict(Maintained.happened)}")
