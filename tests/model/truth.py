"""What must hold at any moment: the state of each checkpoint, whole files, no unknown object.

Looked at after every step, so only what has changed since is looked at: what a checkpoint is read
from are immutable objects, by rows whose ids are compared each time.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from cairn.catalog.catalog import Catalog
from cairn.catalog.job.segments import segments_at
from cairn.handles import SegmentHandle
from cairn.keygroups import range_of
from cairn.layout import manifest_file
from cairn.savepoints.manifest_files import read_manifest
from cairn.segments.snapshot import snapshot
from cairn.storage import open_store
from metastore.enums import FileStatus
from tests.model.application import EVERYTHING, KEY_GROUPS, State, applied, changes_of
from tests.model.watch import Watch
from tests.model.world import World

_READ_FROM = ("checkpoints", "group_commits", "placed_segments")

READABLE = """
    SELECT
        c.checkpoint_id, c.parent_checkpoint, c.batch_id, c.status, c.parallelism,
        ARRAY(
            SELECT CAST(ARRAY[a.subtask, a.task_attempt] AS text) FROM cairn.subtask_acks AS a
            WHERE a.job_id = c.job_id AND a.checkpoint_id = c.checkpoint_id
            ORDER BY a.subtask
        ) AS acks,
        (
            SELECT string_agg(CAST(s.segment_id AS text), ',' ORDER BY s.segment_id)
            FROM cairn.placed_segments AS s
            WHERE s.job_id = c.job_id
              AND s.status = 'LIVE'
              AND cairn.is_part_of(s.first_checkpoint, s.released_checkpoint, c.checkpoint_id)
        ) AS placed,
        (
            SELECT string_agg(g.commit_id || CAST(g.replaced_subtasks AS text), ','
                ORDER BY g.commit_id)
            FROM cairn.group_commits AS g
            WHERE g.job_id = c.job_id
              AND g.status = 'LIVE'
              AND g.checkpoint_id <= c.checkpoint_id
        ) AS committed
    FROM cairn.checkpoints AS c
    WHERE c.job_id = $1 AND c.status IN ('COMPLETED', 'CONFIRMED')
    ORDER BY c.checkpoint_id
"""
FILES = """
    SELECT f.path, f.status, f.size_bytes
    FROM cairn.physical_files AS f
    WHERE f.job_id = $1 AND f.status <> 'DELETED'
"""


class _Readable(NamedTuple):
    """A checkpoint that may be read, and what tells whether it is read from the same."""

    checkpoint_id: int
    parent_checkpoint: int | None
    batch_id: int
    status: str
    parallelism: int
    acks: list[str]
    placed: str | None
    committed: str | None


class Truth:
    """What the checkpoints of jobs should be, against what is there.

    Attributes:
        expected: the state of each checkpoint that may still be read.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.watch = Watch(world.url, readable=f"(text) AS {READABLE}", files=f"(text) AS {FILES}")
        self.expected: dict[tuple[str, int], State] = {}
        self._final: set[tuple[str, int]] = set()
        self._read: dict[tuple[str, int], tuple[str | None, str | None]] = {}
        self._needed: dict[str, dict[int, set[str]]] = {}
        self._seen: dict[str, tuple[object, ...]] = {}

    @property
    def catalog(self) -> Catalog:
        return self._world.catalog

    def forget(self, job_id: str) -> None:
        """Forgets what is known of a job's checkpoints, whose ids may be given again."""
        self._final = {key for key in self._final if key[0] != job_id}
        self._read = {key: ids for key, ids in self._read.items() if key[0] != job_id}
        self._seen.pop(job_id, None)

    def adopt(self, job_id: str, checkpoint_id: int, state: State) -> None:
        """Notes the state that a job was restored to."""
        self.expected[job_id, checkpoint_id] = state
        self._final.add((job_id, checkpoint_id))

    def check(self, job_id: str, *, knows_all: bool) -> None:
        """Every checkpoint that is retained or pinned reads bit for bit, and files are whole.

        Where the metastore `knows_all`, every object has a row.
        """
        rows = self.watch.rows()
        read_from = tuple(rows[name] for name in _READ_FROM)
        now = (*read_from, rows["physical_files"], self.watch.requests)
        seen = self._seen.get(job_id)
        if seen == now:
            return
        if seen is None or seen[: len(read_from)] != read_from:
            self._check_states(job_id)
        self._check_objects(job_id, knows_all=knows_all)
        self._seen[job_id] = now

    def _check_states(self, job_id: str) -> None:
        found = [_Readable(*row) for row in self.watch.execute("readable", job_id)]
        self._learn(job_id, found)
        changed = [
            one.checkpoint_id
            for one in found
            # Objects never change, so what was read before reads the same.
            if self._read.get((job_id, one.checkpoint_id)) != (one.placed, one.committed)
        ]
        needed = self._needed.setdefault(job_id, {})
        for gone in needed.keys() - {one.checkpoint_id for one in found}:
            del needed[gone]
        if changed:
            for checkpoint_id, handles in self._handles(job_id, changed).items():
                needed[checkpoint_id] = {handle.path for handle in handles}
                self._check_state(job_id, checkpoint_id, handles)
        for one in found:
            self._read[job_id, one.checkpoint_id] = (one.placed, one.committed)

    def _learn(self, job_id: str, found: list[_Readable]) -> None:
        """Computes the states of checkpoints that may still change."""
        for one in found:
            key = (job_id, one.checkpoint_id)
            if key in self._final:
                continue
            if one.status == "CONFIRMED":
                # From now on nobody acknowledges it any more.
                self._final.add(key)
            state = dict(self.expected.get((job_id, one.parent_checkpoint or 0), {}))
            for ack in one.acks:
                subtask, attempt = map(int, ack.strip("{}").split(","))
                groups = EVERYTHING.intersect(range_of(subtask, one.parallelism, KEY_GROUPS))
                state = applied(state, changes_of(one.batch_id, attempt, groups))
            if self.expected.get(key) != state:
                self.expected[key] = state
                self._read.pop(key, None)

    def _handles(self, job_id: str, checkpoints: list[int]) -> dict[int, list[SegmentHandle]]:
        def work(connection: Connection) -> dict[int, list[SegmentHandle]]:
            read = partial(segments_at, connection, job_id, key_groups=EVERYTHING)
            return {checkpoint_id: read(checkpoint_id) for checkpoint_id in checkpoints}

        return self.catalog.run("reading", work)

    def _check_state(self, job_id: str, checkpoint_id: int, handles: list[SegmentHandle]) -> None:
        state = snapshot(open_store(self._world.storage), handles, EVERYTHING, job=job_id)
        wanted = self.expected[job_id, checkpoint_id]
        assert state == wanted, (
            f"checkpoint {checkpoint_id} has {state.items() - wanted.items()}"
            f" and lacks {wanted.items() - state.items()}"
        )

    def _check_objects(self, job_id: str, *, knows_all: bool) -> None:
        objects = self._world.objects(job_id)
        for checkpoint_id, paths in self._needed.get(job_id, {}).items():
            missing = paths - objects.keys()
            assert not missing, f"checkpoint {checkpoint_id} needs {missing}"
        if not knows_all:
            return
        known = set()
        for path, status, size_bytes in self.watch.execute("files", job_id):
            known.add(path)
            if status == FileStatus.SEALED:
                assert objects.get(path) == size_bytes, f"{path} is not whole"
        assert objects.keys() <= known, f"no row knows {sorted(objects.keys() - known)}"

    def check_manifests(self, job_id: str) -> None:
        """Every pinned manifest restores its checkpoint from storage alone."""
        for checkpoint_id in self._world.manifests(job_id):
            found = read_manifest(self.manifest_url(job_id, checkpoint_id))
            handles = [handle for _, handle in found.manifest.handles()]
            state = snapshot(found.store, handles, EVERYTHING, job=job_id)
            assert state == self.expected[job_id, checkpoint_id]

    def manifest_url(self, job_id: str, checkpoint_id: int) -> str:
        """Returns the URL of a checkpoint's manifest."""
        return f"{self._world.storage}/{manifest_file(job_id, checkpoint_id)}"

    def close(self) -> None:
        """Closes the connection."""
        self.watch.close()
