"""The model of maintenance at random; `make soak` runs it for as long as one likes."""

from __future__ import annotations

import os
import random

import pytest

from tests.model.machine import Maintained
from tests.model.soak import STEPS, play

EXAMPLES = 20


@pytest.mark.slow
def test_whatever_is_interleaved_no_needed_byte_goes_and_no_useless_one_stays(
    shared_metastore_url: str,
) -> None:
    # What decides over a change plays the same each time.
    given = "1" if "CI" in os.environ else os.environ.get("CAIRN_TEST_SEED")
    number = random.randrange(2**32) if given is None else int(given)
    print(f"seed {number}")
    before = Maintained.total_steps
    play(shared_metastore_url, number, EXAMPLES)
    steps = Maintained.total_steps - before
    print(f"{steps} steps")
    assert steps > EXAMPLES * STEPS / 4
