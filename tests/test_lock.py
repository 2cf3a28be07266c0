"""The locked dependencies: hashed, from no particular index, and without what breaks Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"


@pytest.mark.parametrize("name", ["lock.txt", "uv.txt"])
def test_every_locked_version_has_a_hash_and_no_address(name: str) -> None:
    text = (REQUIREMENTS / name).read_text()
    entries = re.split(r"\n(?=[a-zA-Z0-9])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    assert entries
    for entry in entries:
        assert re.match(r"[\w.\[\],-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text


def test_pyspark_client_which_overwrites_pyspark_is_not_locked() -> None:
    assert not re.search(r"^pyspark-client", (REQUIREMENTS / "lock.txt").read_text(), re.MULTILINE)


def test_make_installs_the_same_uv_that_is_locked() -> None:
    uv = (REQUIREMENTS / "uv.txt").read_text().splitlines()[0]
    assert uv in (REQUIREMENTS / "lock.txt").read_text().splitlines()
