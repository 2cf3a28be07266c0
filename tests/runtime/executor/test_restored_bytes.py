"""How many bytes a restore reads, of a state that does not compress."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cairn.catalog.job.segments import segments_at
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.materialization.write import FULL_FROM_SHARE
from cairn.state.entries import entry_prefix
from cairn.state.view import Overlay
from metastore.enums import SegmentKind
from tests.runtime.tasks import EVERYTHING, MAX_PARALLELISM, Task, new_run, read_back

KEYS, VALUE_BYTES = 1_000, 2_000
STATE_BYTES = KEYS * VALUE_BYTES
"""Of the values alone, so less than what counts as the state's bytes."""
BATCHES, INTERVALS = 8, 8
"""In an interval, and all in all."""
MOST = 1.3


@dataclass
class Changing:
    """Writes each key once in the first batch, then a share of the keys in each."""

    keys_a_batch: int
    number: int = 0

    def __call__(self, overlay: Overlay, _: KeyGroupRange) -> None:
        chance = np.random.default_rng(self.number)
        keys = chance.choice(KEYS, self.keys_a_batch if self.number else KEYS, replace=False)
        for key in keys.tolist():
            entry = entry_prefix(key % MAX_PARALLELISM, 1, b"%d" % key)
            overlay.put(entry, chance.bytes(VALUE_BYTES))
        self.number += 1


@pytest.mark.parametrize("share_an_interval", [0.04, 0.08, 0.1, 0.24])
def test_changes_of_an_interval_at_a_steady_rate_are_bounded_together_with_those_before(
    metastore_url: str, tmp_storage: str, tmp_path: Path, share_an_interval: float
) -> None:
    plan = new_run(metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=1)
    write = Changing(int(KEYS * share_an_interval / BATCHES))
    kinds = set()
    for batch_id in range(INTERVALS * BATCHES):
        task = Task(plan, "one", batch_id, 0, batch_id, write, full_from_share=FULL_FROM_SHARE)
        task.materializes = batch_id % BATCHES == 1
        task.run()
        handles = held(plan, batch_id + 1)
        kinds |= {handle.kind for handle in handles}
        if batch_id > 1:
            assert sum(handle.size_bytes for handle in handles) <= MOST * STATE_BYTES
    assert (SegmentKind.KEYED_INCREMENT in kinds) == (share_an_interval <= 0.1)
    assert len(read_back(plan, INTERVALS * BATCHES)) == KEYS


def held(plan: RunContext, checkpoint_id: int) -> list[SegmentHandle]:
    return plan.catalog.run(
        "reading what a checkpoint holds",
        lambda c: segments_at(c, plan.job_id, checkpoint_id, EVERYTHING),
    )
