"""Making one base from entries in key order, in memory that does not grow with its size.

Most bases are about `CHUNK_BYTES`, and are made in memory. One of a key group that is much larger
is written, batch by batch, to a file without a name on the local disk.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cairn.errors import RefusedError
from cairn.handles import SegmentSpec
from cairn.keygroups import KeyGroupRange
from cairn.segment_index import index_ref
from cairn.segments.format import (
    BINARY_LIMIT_BYTES,
    CHUNK_BYTES,
    ROWS_PER_BATCH,
    encode,
    record_batch,
    schema_of,
    unpacked_bytes,
)
from cairn.segments.indexed import MOST_BLOCKS, group_of, index_of
from cairn.segments.ipc import has_readable_size, write_file
from cairn.segments.scratch import Scratch
from cairn.state.view import PUT, Changes
from metastore.enums import SegmentKind

IN_MEMORY_BYTES = 2 * CHUNK_BYTES
"""Entries of a base beyond these are not kept in memory."""
_PIECE_BYTES = 8 << 20
_BLOCK_BYTES = CHUNK_BYTES // MOST_BLOCKS  # as in other segments of that size
_BATCH_BYTES = 16 << 20  # less than others write: whoever reads it needs less memory


@dataclass(frozen=True, slots=True)
class FoldedBase:
    """A base to write: its spec, and its bytes in pieces."""

    spec: SegmentSpec
    pieces: Sequence[bytes | memoryview]


class BaseWriter:
    """Collects the entries of one base."""

    def __init__(self, metadata: Mapping[str, str], *, scratch: Scratch) -> None:
        self.size_bytes = 0
        """Bytes of all keys and values so far."""
        self._metadata, self._scratch = metadata, scratch
        self._schema = schema_of(metadata, pa.binary())
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._waiting_bytes = self._entries = 0
        self._batches: list[pa.RecordBatch] = []
        self._blocks: list[tuple[int, int, int]] = []
        self._spooled: _Spooled | None = None

    def add(self, keys: list[bytes], values: list[bytes]) -> None:
        """Adds entries, which follow those before in key order.

        Raises:
            RefusedError: a value is too large to be folded.
        """
        size_bytes = sum(map(len, keys)) + sum(map(len, values))
        if size_bytes + self._waiting_bytes > BINARY_LIMIT_BYTES:
            raise RefusedError(
                f"entries of {size_bytes} bytes are more than maintenance folds at once, as no "
                "other entry lies between them. Let the stream materialize this job: set "
                "cairn.changelog.periodic-materialize.by to stream"
            )
        # A block ends with a key group, so that others of these can be read without it.
        if self._waiting_bytes >= _BLOCK_BYTES and keys and keys[0][:2] != self._keys[-1][:2]:
            self._flush(len(self._keys))
        self._keys += keys
        self._values += values
        self._waiting_bytes += size_bytes
        self.size_bytes += size_bytes
        self._entries += len(keys)
        while len(self._keys) >= ROWS_PER_BATCH:
            self._flush(ROWS_PER_BATCH)
        if self._waiting_bytes >= _BATCH_BYTES:
            self._flush(len(self._keys))

    def _flush(self, rows: int) -> None:
        if not rows:
            return
        keys, values = self._keys[:rows], self._values[:rows]
        batch = record_batch(self._schema, bytes([PUT]) * rows, keys, values)
        self._blocks.append((group_of(keys[0]), group_of(keys[-1]), rows))
        self._keys, self._values = self._keys[rows:], self._values[rows:]
        self._waiting_bytes = sum(map(len, self._keys)) + sum(map(len, self._values))
        if self._spooled is not None:
            self._spooled.write(batch)
            return
        self._batches.append(batch)
        if self.size_bytes - self._waiting_bytes > IN_MEMORY_BYTES:
            self._spooled = _Spooled(self._schema, "zstd", self._scratch)
            for one in self._batches:
                self._spooled.write(one)
            self._batches.clear()

    def finish(self, key_groups: KeyGroupRange, as_of_checkpoint: int) -> FoldedBase:
        """Returns the base of some key groups, whose entries were added."""
        data: bytes | mmap.mmap
        if not self._batches and self._spooled is None:
            changes = Changes([PUT] * len(self._keys), self._keys, [*self._values])
            data = encode(changes, metadata=self._metadata, use_threads=False)
        else:
            self._flush(len(self._keys))
            data = self._encoded()
        pieces = [
            memoryview(data)[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)
        ]
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        spec = SegmentSpec(
            kind=SegmentKind.KEYED_FULL,
            size_bytes=len(data),
            sha256=digest.hexdigest(),
            key_groups=key_groups,
            entries=self._entries,
            checkpoint_id=as_of_checkpoint,
            index=index_ref(data),
        )
        return FoldedBase(spec, pieces)

    def _encoded(self) -> bytes | mmap.mmap:
        size_bytes = unpacked_bytes(self.size_bytes, self._entries)
        if self._spooled is None:
            return write_file(
                self._schema,
                lambda: self._batches,
                unpacked_bytes=size_bytes,
                use_threads=False,
                ending=self._index,
            )
        data = self._spooled.finish()
        if not has_readable_size(data, size_bytes):
            again = _Spooled(self._schema, "lz4", self._scratch)
            for batch in self._spooled.batches():
                again.write(batch)
            self._spooled.close()
            self._spooled, data = again, again.finish()
        data = self._spooled.append(self._index(data))
        # The mapping stays.
        self._spooled.close()
        return data

    def _index(self, file: memoryview | mmap.mmap) -> bytes:
        return index_of(file, self._blocks, has_long_offsets=False)


class _Spooled:
    """An Arrow file that is written to disk batch by batch."""

    def __init__(self, schema: pa.Schema, codec: str, scratch: Scratch) -> None:
        self._file = scratch.file()
        options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
        self._writer = pa.ipc.new_file(self._file, schema, options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def finish(self) -> mmap.mmap:
        self._writer.close()
        return self.append(b"")

    def append(self, data: bytes) -> mmap.mmap:
        self._file.seek(0, os.SEEK_END)
        self._file.write(data)
        self._file.flush()
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        self._file.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._file.seek(0)
        reader = pa.ipc.open_file(self._file, options=pa.ipc.IpcReadOptions(use_threads=False))
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
