"""The bytes of a manifest: everything that restores one checkpoint without the metastore.

The first line is `cairn-manifest`, the version of the form and the SHA-256 of the rest; the rest is
JSON. A confirmed checkpoint's manifest is the same whenever it is made: what may still change of a
checkpoint, such as when its segments are released, is not in it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cairn.errors import CorruptSegmentError, RefusedError
from cairn.handles import SegmentHandle
from cairn.keygroups import MAX_PARALLELISM, KeyGroupRange
from cairn.layout import owns
from cairn.names import is_job_name, is_name
from cairn.segment_index import IndexRef
from metastore.enums import Scope, SegmentKind, StateKind

_MAGIC = "cairn-manifest"
_VERSION = 1

# What the columns of the metastore take. The checksum tells only that somebody wrote it.
_Id = Annotated[int, Meta(ge=0, le=2**62)]
_Small = Annotated[int, Meta(ge=0, le=2**15 - 1)]
_Uuid = Annotated[str, Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
_Text = Annotated[str, Meta(max_length=2_000, pattern="^[^\\x00]*$")]
_Parallelism = Annotated[int, Meta(ge=1, le=MAX_PARALLELISM)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestVariable:
    """A state variable: its id in entry keys and the layout of its values.

    `is_dropped`: it was deleted at or before the checkpoint, and entries of it may still be there.
    """

    state_id: Annotated[int, Meta(ge=1, le=2**15 - 1)]
    name: _Text
    kind: StateKind
    value_layout: dict[str, Any]
    user_key_schema: dict[str, Any] | None
    has_ttl: bool
    is_dropped: bool


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A physical file; `path` is its key below the job's storage."""

    file_id: _Uuid
    path: _Text
    scope: Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSegment:
    """One byte range of a file, as `cairn.handles.SegmentHandle` has it.

    One of an exclusive kind is of the manifest's checkpoint, and of no other.
    """

    segment_id: _Uuid
    file_id: _Uuid
    kind: SegmentKind
    subtask: _Small
    key_groups: KeyGroupRange
    offset: _Id
    size_bytes: Annotated[int, Meta(ge=1, le=2**62)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    entries: _Id
    first_checkpoint: _Id
    as_of_checkpoint: _Id
    sequence_number: _Small
    index: IndexRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One confirmed checkpoint of one job. Times are milliseconds since 1970.

    `max_event_ms` is by input the latest event time up to the end of the batch, which the next
    batch's watermark is computed from. `segments` are in order of replay.
    """

    job: _Text
    job_id: _Text
    max_parallelism: _Parallelism
    key_schema: dict[str, Any]
    time_mode: _Text | None
    checkpoint_id: _Id
    parent_checkpoint: _Id | None
    query_id: _Text
    batch_id: Annotated[int, Meta(ge=-1, le=2**62)]
    epoch: _Id
    run_id: _Uuid
    parallelism: _Parallelism
    processing_ms: int
    watermark_ms: int
    max_event_ms: tuple[int | None, ...]
    variables: tuple[ManifestVariable, ...]
    files: tuple[ManifestFile, ...]
    segments: tuple[ManifestSegment, ...]

    def handles(self) -> list[tuple[int, SegmentHandle]]:
        """Returns each segment's subtask and handle, in order of replay."""
        paths = {file.file_id: file.path for file in self.files}
        return [
            (
                segment.subtask,
                SegmentHandle(
                    segment_id=segment.segment_id,
                    kind=segment.kind,
                    path=paths[segment.file_id],
                    offset=segment.offset,
                    size_bytes=segment.size_bytes,
                    sha256=segment.sha256,
                    key_groups=segment.key_groups,
                    entries=segment.entries,
                    first_checkpoint=segment.first_checkpoint,
                    as_of_checkpoint=segment.as_of_checkpoint,
                    released_checkpoint=(
                        self.checkpoint_id + 1 if segment.kind.is_exclusive else None
                    ),
                    sequence_number=segment.sequence_number,
                    index=segment.index,
                ),
            )
            for segment in self.segments
        ]

    def is_same_checkpoint(self, other: Manifest) -> bool:
        """Tells whether another manifest restores the same state.

        Its variables may be those of another time: layouts only grow, and each reads all values
        of the checkpoint.
        """
        return replace(other, variables=self.variables) == self


def encode(manifest: Manifest) -> bytes:
    """Returns the bytes of a manifest; the same for the same manifest."""
    body = msgspec.json.encode(manifest, order="deterministic")
    return f"{_MAGIC} {_VERSION} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def decode(data: bytes, *, file: str) -> Manifest:
    """Returns the manifest in an object's bytes; `file` names it in errors.

    Raises:
        CorruptSegmentError: the bytes are not those of a manifest, or not those written.
        RefusedError: a newer Cairn wrote it.
    """
    head, _, body = data.partition(b"\n")
    magic, *rest = head.split(b" ")
    # Before the checksum: another object is told from a damaged manifest.
    if magic != _MAGIC.encode() or len(rest) != 2:
        raise CorruptSegmentError("the object is not a manifest", file=file)
    version, sha256 = rest
    if version != b"%d" % _VERSION:
        raise RefusedError(
            f"the manifest has version {version.decode(errors='replace')}, this Cairn reads "
            f"{_VERSION}: use the Cairn that wrote it, or a newer one",
            file=file,
        )
    found = hashlib.sha256(body).hexdigest()
    if found != sha256.decode(errors="replace"):
        raise CorruptSegmentError(
            f"the manifest is not what was written: its SHA-256 is {found}. Put back the object's "
            "original bytes, or take another checkpoint's manifest",
            file=file,
        )
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptSegmentError(f"the manifest cannot be read: {error}", file=file) from error
    _check_whole(manifest, file)
    return manifest


def _is_inside(index: IndexRef | None, size_bytes: int) -> bool:
    return index is None or (
        0 < index.size_bytes < min(size_bytes, 2**31)
        and re.fullmatch("[0-9a-f]{64}", index.sha256) is not None
    )


def _check_whole(manifest: Manifest, file: str) -> None:
    """Refuses a manifest that does not fit together, or whose files are not its job's own."""

    def refuse(what: str) -> CorruptSegmentError:
        return CorruptSegmentError(
            what, job=manifest.job, checkpoint=manifest.checkpoint_id, file=file
        )

    if not is_job_name(manifest.job):
        raise CorruptSegmentError("the manifest's job has a name that no job may have", file=file)
    if not all(is_name(variable.name) for variable in manifest.variables):
        raise refuse("a state variable of the manifest has a name that none may have")
    if manifest.parallelism > manifest.max_parallelism:
        raise refuse(f"the manifest has {manifest.parallelism} subtasks for fewer key groups")
    ids: list[list[str] | list[int]] = [
        [entry.file_id for entry in manifest.files],
        [entry.path for entry in manifest.files],
        [segment.segment_id for segment in manifest.segments],
        [variable.state_id for variable in manifest.variables],
    ]
    if any(len(set(each)) < len(each) for each in ids):
        raise refuse("the manifest names a file, a segment or a state variable twice")
    if {entry.file_id for entry in manifest.files} - {one.file_id for one in manifest.segments}:
        raise refuse("the manifest names a file that none of its segments is in")
    # Paths of another root could make a restore read what is not the job's.
    known = {entry.file_id for entry in manifest.files if owns(manifest.job_id, entry.path)}
    for segment in manifest.segments:
        if (
            segment.file_id not in known
            or segment.kind is SegmentKind.MANIFEST
            or not segment.first_checkpoint <= manifest.checkpoint_id
            or not segment.as_of_checkpoint <= manifest.checkpoint_id
            or (segment.kind.is_exclusive and segment.first_checkpoint != manifest.checkpoint_id)
            or not segment.key_groups.end <= manifest.max_parallelism
            or not _is_inside(segment.index, segment.size_bytes)
        ):
            raise refuse(
                f"segment {segment.segment_id} of the manifest is no part of its checkpoint"
            )
