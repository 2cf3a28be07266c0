"""What holds after every step of the protocol, by a plain dict of the state per batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine, invariant
from sqlalchemy import text

from cairn.catalog.catalog import Catalog
from cairn.keygroups import KeyGroupRange
from cairn.layout import generation_of
from cairn.runtime.executor.run_context import RunContext
from cairn.savepoints.manifest_files import read_manifest
from cairn.segments.snapshot import snapshot
from cairn.state.entries import entry_prefix
from cairn.state.view import Overlay
from cairn.storage import open_store
from metastore.enums import CheckpointStatus
from tests.runtime.tasks import (
    EVERYTHING,
    MAX_PARALLELISM,
    Write,
    read_back,
    remembered,
    subtask_range,
)

READABLE = (CheckpointStatus.COMPLETED, CheckpointStatus.CONFIRMED)

State = dict[bytes, bytes]


def signature(group: int, attempt: int) -> bytes:
    """Returns the entry that an attempt leaves in a key group, and no other attempt does."""
    return entry_prefix(group, 3, b"attempts") + b"%d" % attempt


def signed(write: Write, attempt: int) -> Write:
    """Returns the same changes with the attempt's signature."""

    def write_and_sign(overlay: Overlay, groups: KeyGroupRange) -> None:
        write(overlay, groups)
        for group in range(groups.start, groups.end):
            overlay.put(signature(group, attempt), b"")

    return write_and_sign


@dataclass(frozen=True)
class History:
    """Batches that are over: how many, and the attempts that have won, as they have signed."""

    batches: int = 0
    signatures: State = field(default_factory=dict)

    def state(self, groups: KeyGroupRange) -> State:
        """Returns the state that they leave in some key groups."""
        signed = {key: b"" for key in self.signatures if int.from_bytes(key[:2], "big") in groups}
        return {**signed, **remembered(self.batches, groups)}


class Checked(RuleBasedStateMachine):
    """A job with what it should hold; the moves are those of `tests.runtime.test_protocol_model`.

    Attributes:
        origin: what the job was restored with.
        savepoints: by the manifest's URL.
        tears: whether files may have bytes after their end, of writers that were refused.
    """

    url: ClassVar[str]
    plan: RunContext
    next_batch: int
    origin: History
    savepoints: dict[str, History]
    tears: bool

    def history(self, checkpoint_id: int) -> History:
        """Returns the batches up to a checkpoint's, signed by each winning attempt."""
        attempts = self.rows(
            "WITH RECURSIVE lineage AS ("
            "  SELECT job_id, checkpoint_id, parent_checkpoint, parallelism, batch_id"
            "  FROM cairn.checkpoints WHERE job_id = :job AND checkpoint_id = :checkpoint"
            "  UNION ALL SELECT c.job_id, c.checkpoint_id, c.parent_checkpoint, c.parallelism,"
            "  c.batch_id FROM cairn.checkpoints c JOIN lineage l"
            "  ON c.job_id = l.job_id AND c.checkpoint_id = l.parent_checkpoint)"
            " SELECT batch_id, parallelism, subtask, task_attempt"
            " FROM lineage JOIN cairn.subtask_acks USING (job_id, checkpoint_id)",
            checkpoint=checkpoint_id,
        )
        signatures = {
            signature(group, attempt): b""
            for _, parallelism, subtask, attempt in attempts
            for group in range(MAX_PARALLELISM)
            if group in subtask_range(subtask, parallelism)
        }
        batches = {batch_id for batch_id, *_ in attempts}
        assert batches == set(range(len(batches)))
        return History(self.origin.batches + len(batches), {**self.origin.signatures, **signatures})

    def rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        bound = {"job": self.plan.job_id, **values}
        with Catalog(self.url).begin() as connection:
            return [tuple(row) for row in connection.execute(text(statement), bound)]

    def assert_recorded(self, task_attempt: int) -> None:
        """A task that was told it is acknowledged is, or a later attempt of it."""
        assert self.rows(
            "SELECT 1 FROM cairn.subtask_acks WHERE job_id = :job AND task_attempt >= :attempt",
            attempt=task_attempt,
        )

    @invariant()
    def every_retained_checkpoint_reads_back_as_its_batch(self) -> None:
        found = self.rows(
            "SELECT checkpoint_id, batch_id, status FROM cairn.checkpoints WHERE job_id = :job"
        )
        for checkpoint_id, _, status in found:
            if status in READABLE:
                expected = self.history(checkpoint_id).state(EVERYTHING)
                assert read_back(self.plan, checkpoint_id) == expected
        confirmed = [batch_id for _, batch_id, status in found if status == "CONFIRMED"]
        assert len(confirmed) == len(set(confirmed))
        assert max(confirmed, default=-1) < self.next_batch

    @invariant()
    def every_acknowledged_subtask_reads_back_as_its_batch(self) -> None:
        for checkpoint_id, subtask, parallelism in self.rows(
            "SELECT checkpoint_id, subtask, parallelism FROM cairn.subtask_acks"
            " JOIN cairn.checkpoints USING (job_id, checkpoint_id)"
            " WHERE job_id = :job AND status = 'IN_PROGRESS'"
        ):
            groups = subtask_range(subtask, parallelism)
            state = read_back(self.plan, checkpoint_id, groups)
            assert state == self.history(checkpoint_id).state(groups)

    @invariant()
    def every_savepoint_reads_back_as_it_was_from_storage_alone(self) -> None:
        for url, history in self.savepoints.items():
            found = read_manifest(url)
            handles = [handle for _, handle in found.manifest.handles()]
            state = snapshot(found.store, handles, EVERYTHING, job=found.manifest.job)
            assert state == history.state(EVERYTHING)

    @invariant()
    def every_sealed_file_exists_whole_and_every_object_is_known(self) -> None:
        store = open_store(self.plan.storage)
        objects = {
            found.path: found.size_bytes
            for found in store.list(f"{self.plan.job_id}/")
            if generation_of(found.path) is None
        }
        files = self.rows(
            "SELECT path, status, size_bytes FROM cairn.physical_files WHERE job_id = :job"
        )
        sealed = {path: size_bytes for path, status, size_bytes in files if status == "SEALED"}
        assert sealed.keys() <= objects.keys()
        longer = {path for path, size_bytes in sealed.items() if objects[path] > size_bytes}
        assert not longer or self.tears
        assert all(objects[path] >= size_bytes for path, size_bytes in sealed.items())
        assert objects.keys() <= {path for path, status, _ in files if status != "DELETED"}

    @invariant()
    def every_segment_lies_within_its_file_and_none_overlap(self) -> None:
        assert not self.rows(
            "SELECT s.segment_id FROM cairn.segments s JOIN cairn.physical_files f USING (file_id)"
            " LEFT JOIN cairn.segments o ON o.file_id = s.file_id AND o.segment_id <> s.segment_id"
            " AND o.offset_bytes < s.offset_bytes + s.size_bytes"
            " AND s.offset_bytes < o.offset_bytes + o.size_bytes"
            " WHERE f.job_id = :job AND"
            " (s.offset_bytes + s.size_bytes > f.size_bytes OR o.segment_id IS NOT NULL)"
        )

    @invariant()
    def directories_are_claimed_by_the_run_that_writes_to_them_and_by_no_older_one(self) -> None:
        assert not self.rows(
            "SELECT d.path FROM cairn.directories d JOIN cairn.jobs j USING (job_id)"
            " JOIN cairn.runs r ON r.job_id = j.job_id AND r.epoch = j.current_epoch"
            " WHERE j.job_id = :job AND d.status = 'CLAIMED' AND d.epoch < r.epoch"
            " AND d.parallelism IS DISTINCT FROM r.parallelism"
        )
        assert not self.rows(
            "SELECT f.path FROM cairn.physical_files f JOIN cairn.jobs j USING (job_id)"
            " LEFT JOIN cairn.directories d ON d.job_id = f.job_id"
            " AND starts_with(f.path, d.path || '/')"
            " WHERE f.job_id = :job AND f.epoch = j.current_epoch"
            " AND f.path NOT LIKE '%/exclusive/%' AND f.path NOT LIKE '%-restored/%'"
            " AND f.path NOT LIKE '%/_metadata' AND d.status IS DISTINCT FROM 'CLAIMED'"
        )

    @invariant()
    def live_bytes_are_exact(self) -> None:
        assert not self.rows(
            "SELECT path FROM cairn.physical_files f LEFT JOIN cairn.segments s"
            " ON s.file_id = f.file_id AND s.status = 'LIVE' WHERE f.job_id = :job"
            " GROUP BY f.file_id HAVING coalesce(sum(s.size_bytes), 0) <> f.live_bytes"
            " OR count(s.segment_id) <> f.live_segments"
        )
