"""The bytes of a segment: an Arrow IPC file of state changes, compressed with zstd or LZ4.

A larger one has its rows in record batches by key group, and after the file an index of them, see
`cairn.segment_index`.

Columns: `key_group` and `state` (uint16), `op` (uint8: PUT, DELETE or DELETE_PREFIX of
`cairn.state.view`), `key` (binary: the whole entry key, or the prefix) and `value` (binary, null
unless PUT). Rows are in the order to apply them in, which is by key group. The file's metadata
describes it, each key with `cairn.` before it.
"""

from __future__ import annotations

import bisect
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from mmap import mmap
from typing import Any

import numpy as np
import pyarrow as pa

from cairn.errors import CorruptSegmentError
from cairn.keygroups import KeyGroupRange
from cairn.segment_index import index_bytes
from cairn.segments.indexed import INDEXED_FROM_BYTES, cuts_of, ending
from cairn.segments.ipc import decoding, open_file, write_file
from cairn.state.entries import PREFIX_HEAD_BYTES, STATE_HEAD_BYTES, split
from cairn.state.view import DELETE_PREFIX, PUT, Changes
from metastore.enums import SegmentKind

FORMAT_VERSION = "1"
ROWS_PER_BATCH = 65_536
BYTES_PER_BATCH = 64 << 20
"""A record batch ends with the row that reaches one of the two, so that one fits into memory."""
SMALL_BYTES = 16 << 10
"""Keys and values up to here are compressed with LZ4: setting up zstd for each buffer of a small
segment takes ten times as long as all else, both to write it and to read it."""

CHUNK_BYTES = 32 << 20
"""About how much of the state one base holds; a key group is never split."""
BINARY_LIMIT_BYTES = 2**31 - 1
"""Most bytes of the keys or of the values in a record batch with 32-bit offsets."""

_VERSION_KEY = b"cairn.format_version"
_BYTES_PER_ROW = 13  # of the fixed columns and two offsets
_LONG_KEY_BYTES = 256
_FIXED_FIELDS = (
    pa.field("key_group", pa.uint16(), nullable=False),
    pa.field("state", pa.uint16(), nullable=False),
    pa.field("op", pa.uint8(), nullable=False),
)


def segment_metadata(
    job: str, checkpoint_id: int, subtask: int, kind: SegmentKind
) -> dict[str, str]:
    """Returns what a segment of any kind says of itself."""
    return {
        "job": job,
        "checkpoint": str(checkpoint_id),
        "subtask": str(subtask),
        "kind": kind.value,
    }


def encode(changes: Changes, *, metadata: Mapping[str, str], use_threads: bool = True) -> bytes:
    """Returns a segment of changes in the order given, which has to be by key group.

    `metadata` describes it, see `segment_metadata`. Without threads, only the calling one computes.
    """
    ops, keys, values = changes.ops, changes.keys, changes.values
    total_bytes, longest_bytes = changes.size_bytes, 0
    is_small = total_bytes <= SMALL_BYTES
    if total_bytes > BINARY_LIMIT_BYTES:
        longest_bytes = max(map(len, filter(None, values)), default=0)
    # 32-bit offsets unless one value alone may pass them: a batch ends with the row that fills it.
    fits = BYTES_PER_BATCH + longest_bytes <= BINARY_LIMIT_BYTES
    schema = schema_of(metadata, pa.binary() if fits else pa.large_binary())
    is_indexed = total_bytes >= INDEXED_FROM_BYTES
    cuts = cuts_of(keys, total_bytes) if is_indexed else []
    places = list(_record_batches(keys, values, total_bytes, cuts))

    def batches() -> Iterator[pa.RecordBatch]:
        for rows in places:
            yield record_batch(schema, ops[rows], keys[rows], values[rows])

    return write_file(
        schema,
        batches,
        unpacked_bytes=unpacked_bytes(total_bytes, len(keys)),
        codec="lz4" if is_small else "zstd",
        use_threads=use_threads and not is_small,
        ending=partial(ending, keys=keys, places=places, has_long_offsets=not fits)
        if is_indexed
        else None,
    )


def schema_of(metadata: Mapping[str, str], binary: pa.DataType) -> pa.Schema:
    """Returns the schema of a segment whose keys and values are of one of Arrow's two types."""
    fields = [*_FIXED_FIELDS, pa.field("key", binary, nullable=False), pa.field("value", binary)]
    about = {f"cairn.{name}".encode(): text.encode() for name, text in metadata.items()}
    return pa.schema(fields, metadata={_VERSION_KEY: FORMAT_VERSION.encode(), **about})


def record_batch(
    schema: pa.Schema,
    ops: Sequence[int],
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
) -> pa.RecordBatch:
    """Returns changes as a record batch of a segment's schema."""
    binary = schema.field("key").type
    columns = [*_heads(keys), _bytes(ops), _binary(keys, binary), _binary(values, binary)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def unpacked_bytes(entry_bytes: int, rows: int) -> int:
    """Returns about what the columns of a segment have, before they are compressed."""
    return entry_bytes + _BYTES_PER_ROW * rows


def decode(data: bytes, key_groups: KeyGroupRange | None = None) -> Iterator[Changes]:
    """Yields a segment's changes by record batch; only those of `key_groups` if given.

    Raises:
        CorruptSegmentError: the bytes are no segment, or one of another format version.
    """
    return map(changes_of, record_batches(data, key_groups))


def record_batches(
    data: bytes | mmap,
    key_groups: KeyGroupRange | None = None,
    *,
    use_threads: bool = True,
    entries: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields what `decode` does before it is made Python's: without the interpreter's lock.

    No batch is empty. Without threads, only the calling one decompresses. `entries` is how many
    rows there are, if that is known.

    Raises:
        CorruptSegmentError: see `decode`.
    """
    with decoding("the segment"):
        # To hand a small one to other threads takes longer than to decompress it.
        file = memoryview(data)[: len(data) - index_bytes(data)]
        reader = open_file(file, use_threads=use_threads and len(data) > SMALL_BYTES)
        _check_schema(reader.schema)
        rows = 0
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            rows += batch.num_rows
            check_rows(batch)
            if key_groups is not None:
                batch = rows_of(batch, key_groups)
            if batch.num_rows:
                yield batch
        if entries is not None and rows != entries:
            raise CorruptSegmentError(f"the segment has {rows} rows, but {entries} were recorded")


def changes_of(batch: pa.RecordBatch) -> Changes:
    """Returns the changes in one of the batches that `record_batches` yields."""
    return Changes(*(batch.column(name).to_pylist() for name in ("op", "key", "value")))


def _record_batches(
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    total_bytes: int,
    cuts: Sequence[int],
) -> Iterator[slice]:
    """Yields the rows of each record batch; one ends at each of the `cuts`, which are places."""
    # Nearly all segments: no look at each row.
    if total_bytes <= BYTES_PER_BATCH:
        for start, end in pairwise([0, *cuts, len(keys)]):
            for first in range(start, end, ROWS_PER_BATCH):
                yield slice(first, min(first + ROWS_PER_BATCH, end))
        return
    first = size_bytes = 0
    ends = {*cuts, len(keys)}
    for end, (key, value) in enumerate(zip(keys, values, strict=True), start=1):
        size_bytes += len(key) + len(value or b"")
        if end - first == ROWS_PER_BATCH or size_bytes >= BYTES_PER_BATCH or end in ends:
            yield slice(first, end)
            first, size_bytes = end, 0


def _heads(keys: Sequence[bytes]) -> tuple[pa.Array, pa.Array]:
    """Returns the key groups and state ids that the keys start with."""
    # As one buffer: no Python object per row.
    heads = array("H", b"".join([key[:4] for key in keys]))
    if sys.byteorder == "little":
        heads.byteswap()
    return tuple(
        pa.Array.from_buffers(pa.uint16(), len(keys), [None, pa.py_buffer(column)])
        for column in (heads[0::2], heads[1::2])
    )


def _bytes(numbers: Sequence[int]) -> pa.Array:
    data = pa.py_buffer(bytes(numbers))
    return pa.Array.from_buffers(pa.uint8(), len(numbers), [None, data])


def _binary(items: Sequence[bytes | None], binary: pa.DataType) -> pa.Array:
    """Returns what `pa.array` would, which imports pandas the first time: a second and a half."""
    present, validity = [item or b"" for item in items], None
    if None in items:
        is_there = [item is not None for item in items]
        validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    offsets = array("i" if binary == pa.binary() else "q", accumulate(map(len, present), initial=0))
    data = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(present))]
    return pa.Array.from_buffers(binary, len(items), data)


def _check_schema(schema: pa.Schema) -> None:
    version = (schema.metadata or {}).get(_VERSION_KEY)
    if version is None:
        raise CorruptSegmentError("the segment is an Arrow file, but not one that Cairn wrote")
    if version != FORMAT_VERSION.encode():
        raise CorruptSegmentError(
            f"the segment has format version {version.decode(errors='replace')}, this version of "
            f"Cairn reads version {FORMAT_VERSION}: use the version of Cairn that wrote it"
        )
    # A segment with a very large value has 64-bit offsets.
    for binary in (pa.binary(), pa.large_binary()):
        fields = [*_FIXED_FIELDS, pa.field("key", binary, nullable=False), ("value", binary)]
        if schema.equals(pa.schema(fields)):
            return
    raise CorruptSegmentError(f"the segment has other columns than it should: {schema.names}")


def check_rows(batch: pa.RecordBatch) -> None:
    """Refuses what nobody can apply: found here, where nothing is done for each row in Python.

    Raises:
        CorruptSegmentError, pyarrow.ArrowInvalid: the batch has rows that are no changes.
    """
    # Full: offsets that lie would be read outside of the buffers.
    batch.validate(full=True)
    if not batch.num_rows:
        return
    keys, values = batch.column("key"), batch.column("value")
    # From the buffers: `to_numpy` imports pandas the first time, as `pa.array` does.
    ops = _numbers(batch.column("op"), np.uint8, batch.num_rows)
    of_offsets = np.int32 if keys.type == pa.binary() else np.int64
    lengths = np.diff(_numbers(keys, of_offsets, batch.num_rows + 1))
    if not ops.any():  # all are PUT, as in a base
        is_whole = values.null_count == 0 and lengths.min() >= PREFIX_HEAD_BYTES
    else:
        of_state = (ops == DELETE_PREFIX) & (lengths == STATE_HEAD_BYTES)
        is_whole = (
            ops.max() <= DELETE_PREFIX
            and not np.any((lengths < PREFIX_HEAD_BYTES) & ~of_state)
            and np.array_equal(ops == PUT, _is_valid(values))
        )
    if not is_whole:
        raise CorruptSegmentError("the segment has rows that are no changes of entries")
    if lengths.max() > _LONG_KEY_BYTES:  # only these are taken apart where they are applied
        for row in np.flatnonzero(lengths > _LONG_KEY_BYTES):
            try:
                split(keys[int(row)].as_py())
            except ValueError as error:
                raise CorruptSegmentError(f"the segment has a row that is none: {error}") from error


def _numbers(column: pa.Array, dtype: type[np.generic], count: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(column.buffers()[1], dtype, count)


def _is_valid(column: pa.Array) -> np.ndarray[Any, Any]:
    validity = column.buffers()[0]
    if validity is None:
        return np.ones(len(column), np.bool_)
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=len(column), bitorder="little")
    return bits.astype(np.bool_)


def rows_of(batch: pa.RecordBatch, key_groups: KeyGroupRange) -> pa.RecordBatch:
    """Returns the rows of some key groups of a batch that is in their order."""
    column = batch.column("key_group")

    def first_from(key_group: int) -> int:
        return bisect.bisect_left(
            range(batch.num_rows), key_group, key=lambda row: column[row].as_py()
        )

    start = first_from(key_groups.start)
    return batch.slice(start, max(0, first_from(key_groups.end) - start))
