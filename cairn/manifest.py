"""The bytes of a manifest: everything that restores one checkpoint without the metastore.

The first line is `cairn-manifest`, the version of the form and the SHA-256 of the rest; the rest is
JSON. A confirmed checkpoint's manifest is the same whenever it is made: what may still change of a
checkpoint, such as when its segments are released, is not in it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from cairn.errors import CorruptSegmentError, RefusedError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.layout import owns
from metastore.enums import Scope, SegmentKind

_MAGIC = "cairn-manifest"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestVariable:
    """A state variable: its id in entry keys and the layout of its values.

    `is_dropped`: it was deleted at or before the checkpoint, and entries of it may still be there.
    """

    state_id: int
    name: str
    kind: str
    value_layout: dict[str, Any]
    user_key_schema: dict[str, Any] | None
    has_ttl: bool
    is_dropped: bool


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A physical file; `path` is its key below the job's storage."""

    file_id: str
    path: str
    scope: Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSegment:
    """One byte range of a file, as `cairn.handles.SegmentHandle` has it.

    One of an exclusive kind is of the manifest's checkpoint, and of no other.
    """

    segment_id: str
    file_id: str
    kind: SegmentKind
    subtask: int
    key_groups: KeyGroupRange
    offset: int
    size_bytes: int
    sha256: str
    entries: int
    first_checkpoint: int
    as_of_checkpoint: int
    sequence_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One confirmed checkpoint of one job. Times are milliseconds since 1970.

    `max_event_ms` is by input the latest event time up to the end of the batch, which the next
    batch's watermark is computed from. `segments` are in order of replay.
    """

    job: str
    job_id: str
    max_parallelism: int
    key_schema: dict[str, Any]
    time_mode: str | None
    checkpoint_id: int
    parent_checkpoint: int | None
    query_id: str
    batch_id: int
    epoch: int
    run_id: str
    parallelism: int
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
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptSegmentError(f"the manifest cannot be read: {error}", file=file) from error
    _check_whole(manifest, file)
    return manifest


def _check_whole(manifest: Manifest, file: str) -> None:
    """Refuses a manifest whose segments do not fit it, or whose files are not its job's own."""
    # Paths of another root could make a restore read what is not the job's.
    known = {entry.file_id for entry in manifest.files if owns(manifest.job_id, entry.path)}
    for segment in manifest.segments:
        if (
            segment.file_id not in known
            or segment.kind is SegmentKind.MANIFEST
            or not segment.first_checkpoint <= manifest.checkpoint_id
            or (segment.kind.is_exclusive and segment.first_checkpoint != manifest.checkpoint_id)
            or not segment.key_groups.end <= manifest.max_parallelism
        ):
            raise CorruptSegmentError(
                f"segment {segment.segment_id} of the manifest is no part of its checkpoint",
                job=manifest.job,
                checkpoint=manifest.checkpoint_id,
                file=file,
            )
