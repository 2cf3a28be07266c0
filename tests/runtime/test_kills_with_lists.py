"""SIGKILL before every step of a group commit with operator lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cairn.maintenance.cleanup import cleanup_job
from tests.runtime.file_rows import rows
from tests.runtime.task.list_stream import BOTH, commit_with_lists, noted, stored_lists
from tests.runtime.tasks import facts_of, new_run
from tests.runtime.test_kills_at_every_step import Query


@dataclass
class ListQuery(Query):
    """A query whose batches change operator lists, too."""

    seen: list[str] = field(default_factory=list)

    def restart(self) -> None:
        self.plan = new_run(
            self.url, self.storage, self.local_dir, options=self.options, states=BOTH
        )

    def given(self) -> tuple[dict[str, Any], int, int]:
        self.attempts += 1
        return facts_of(self.plan), self.batches, self.attempts

    def assert_lists(self, step: str) -> None:
        for checkpoint_id, batch_id in rows(
            self.plan,
            "SELECT checkpoint_id, batch_id FROM cairn.checkpoints"
            " WHERE status IN ('COMPLETED', 'CONFIRMED')",
        ):
            expected = noted(batch_id + 1, self.plan.parallelism)
            assert stored_lists(self.plan, checkpoint_id) == expected, step


@pytest.mark.slow
def test_whoever_is_killed_when_leaves_each_checkpoint_with_its_lists(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    """One attempt of a batch after the other is killed, each a step later, until one gets through.

    Every third batch goes on in the same run, the others in a new one that does it again.
    """
    query = ListQuery(metastore_url, tmp_storage, str(tmp_path / "local"))
    commit_with_lists(*query.given())
    query.batches += 1
    while step := query.kill(len(query.seen) + 1, commit_with_lists, *query.given()):
        query.seen.append(step)
        query.assert_lists(f"killed {step}")
        if len(query.seen) % 3:
            query.restart()
        commit_with_lists(*query.given())
        query.batches += 1
        query.assert_lists(f"gone on after {step}")
        query.assert_whole(step)
        cleanup_job(query.plan.catalog, query.plan.job)
    assert any("after COMMIT" in step and "group_commits" in step for step in query.seen)
    assert "before rename into 0" in query.seen, "the spool of subtask 0"
