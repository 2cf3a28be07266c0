"""A machine that is not in UTC: a naive datetime shows there whose time it is taken for."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def in_new_york() -> Iterator[None]:
    """Puts this process into another time zone than UTC and the sessions of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()
