"""The plain values that name bytes in storage and their purpose."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

from cairn.keygroups import KeyGroupRange
from cairn.segment_index import IndexRef, index_ref
from metastore.enums import Scope, SegmentKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryHandle:
    """A directory that one subtask or one task manager owns, to be given up whole (FLIP-306 4.3).

    `path` is its key below the job's storage. A subtask's has `subtask` and `parallelism`, a task
    manager's has `tm_id`.
    """

    path: str
    scope: Scope
    subtask: int | None = None
    parallelism: int | None = None
    tm_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHandle:
    """One contiguous byte range of a physical file, written by one subtask for one purpose.

    `path` is the physical file's key below the job's storage, `offset` and `size_bytes` the range
    in it, `sha256` the hex digest of exactly those bytes. The segment brings a restore to the
    state of checkpoint `as_of_checkpoint` in its `key_groups`; it is part of checkpoint c iff
    `first_checkpoint <= c` and (`released_checkpoint` is None or `c < released_checkpoint`).
    `sequence_number` is its place among the changelog segments of a subtask in one checkpoint. One
    of an exclusive kind is released at the checkpoint after its own from the start. `index` is
    where the key groups are in it, if it is large enough to have that.
    """

    segment_id: str
    kind: SegmentKind
    path: str
    offset: int
    size_bytes: int
    sha256: str
    key_groups: KeyGroupRange
    entries: int
    first_checkpoint: int
    as_of_checkpoint: int
    released_checkpoint: int | None = None
    sequence_number: int = 0
    index: IndexRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpec:
    """What a new segment is, wherever its bytes will be; `SegmentHandle` says what is what.

    It is made in checkpoint `checkpoint_id` or from its state, and brings a restore there.
    """

    kind: SegmentKind
    size_bytes: int
    sha256: str
    key_groups: KeyGroupRange
    entries: int
    checkpoint_id: int
    sequence_number: int = 0
    index: IndexRef | None = None

    @classmethod
    def of(
        cls,
        data: bytes,
        *,
        kind: SegmentKind,
        key_groups: KeyGroupRange,
        entries: int,
        checkpoint_id: int,
        sequence_number: int = 0,
    ) -> SegmentSpec:
        """Returns the spec of a segment of these bytes."""
        return cls(
            kind=kind,
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            key_groups=key_groups,
            entries=entries,
            checkpoint_id=checkpoint_id,
            sequence_number=sequence_number,
            index=index_ref(data),
        )

    def at(self, path: str, offset: int = 0, *, segment_id: str | None = None) -> SegmentHandle:
        """Returns the handle of the segment at a place in a file; its id is a fresh one if None."""
        return SegmentHandle(
            segment_id=segment_id or str(uuid.uuid4()),
            kind=self.kind,
            path=path,
            offset=offset,
            size_bytes=self.size_bytes,
            sha256=self.sha256,
            key_groups=self.key_groups,
            entries=self.entries,
            first_checkpoint=self.checkpoint_id,
            as_of_checkpoint=self.checkpoint_id,
            # Exclusive ones are of one checkpoint, so they need no transaction that releases them.
            released_checkpoint=self.checkpoint_id + 1 if self.kind.is_exclusive else None,
            sequence_number=self.sequence_number,
            index=self.index,
        )
