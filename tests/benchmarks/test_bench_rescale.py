from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rescale import MOST_READ, Rescaled, measure
from benchmarks.restore_rows import Shape

SMALL = Shape.of(4_000_000, 1000)


@pytest.mark.slow
def test_a_small_run_reads_little_more_than_the_state(
    shared_metastore_url: str, tmp_path: Path
) -> None:
    found = measure(SMALL, [(1, 2), (2, 1)], tmp_path, shared_metastore_url)
    measured = [(one.before, one.after, one.executors) for one in found]
    assert measured == [(1, 2, 1), (1, 2, 2), (2, 1, 1)]
    assert [one.share for one in found if not 0.99 <= one.share <= MOST_READ] == []


def test_a_share_is_of_the_states_bytes_in_storage() -> None:
    one = Rescaled(
        before=1,
        after=2,
        executors=1,
        state_bytes=100,
        segments=1,
        read_bytes=120,
        requests=4,
        seconds=0.1,
    )
    assert one.share == 1.2
