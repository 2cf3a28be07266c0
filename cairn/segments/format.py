"""The bytes of a segment: an Arrow IPC file of state changes, compressed with zstd.

Columns: `key_group` and `state` (uint16), `op` (uint8: PUT, DELETE or DELETE_PREFIX of
`cairn.state.view`), `key` (binary: the whole entry key, or the prefix) and `value` (binary, null
unless PUT). Rows are in the order to apply them in, which is by key group. The file's metadata
tells what it is, each key with `cairn.` before it.
"""

from __future__ import annotations

import bisect
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from cairn.errors import CorruptSegmentError
from cairn.keygroups import KeyGroupRange
from cairn.state.view import Changes

FORMAT_VERSION = "1"
ROWS_PER_BATCH = 65_536
BYTES_PER_BATCH = 64 << 20
"""A record batch ends with the row that reaches one of the two, so that one fits into memory."""

_VERSION_KEY = b"cairn.format_version"
_BINARY_LIMIT_BYTES = 2**31 - 1
_FIXED_FIELDS = (
    pa.field("key_group", pa.uint16(), nullable=False),
    pa.field("state", pa.uint16(), nullable=False),
    pa.field("op", pa.uint8(), nullable=False),
)


def encode(
    ops: Sequence[int],
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    *,
    metadata: Mapping[str, str],
) -> bytes:
    """Returns a segment of changes in the order given, which has to be by key group.

    `metadata` says what it is, as text: job, checkpoint, subtask, kind.
    """
    total_bytes = sum(map(len, keys)) + sum(map(len, filter(None, values)))
    longest_bytes = 0
    if total_bytes > _BINARY_LIMIT_BYTES:
        longest_bytes = max(map(len, filter(None, values)), default=0)
    fits = BYTES_PER_BATCH + longest_bytes <= _BINARY_LIMIT_BYTES
    binary = pa.binary() if fits else pa.large_binary()
    schema = pa.schema(
        [
            *_FIXED_FIELDS,
            pa.field("key", binary, nullable=False),
            pa.field("value", binary),
        ],
        metadata={
            _VERSION_KEY: FORMAT_VERSION.encode(),
            **{f"cairn.{name}".encode(): text.encode() for name, text in metadata.items()},
        },
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for rows in _record_batches(keys, values, total_bytes):
            columns = [
                *_heads(keys[rows]),
                pa.array(ops[rows], pa.uint8()),
                pa.array(keys[rows], binary),
                pa.array(values[rows], binary),
            ]
            writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes, key_groups: KeyGroupRange | None = None) -> Iterator[Changes]:
    """Yields a segment's changes by record batch; only those of `key_groups` if given.

    Raises:
        CorruptSegmentError: the bytes are no segment, or one of another format version.
    """
    try:
        reader = pa.ipc.open_file(pa.BufferReader(data))
        _check_schema(reader.schema)
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            batch.validate(full=True)
            if key_groups is not None:
                batch = _only(batch, key_groups)
            if batch.num_rows:
                yield Changes(*(batch.column(name).to_pylist() for name in ("op", "key", "value")))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptSegmentError(f"the segment cannot be decoded: {error}") from error


def _record_batches(
    keys: Sequence[bytes], values: Sequence[bytes | None], total_bytes: int
) -> Iterator[slice]:
    if total_bytes <= BYTES_PER_BATCH:
        for first in range(0, len(keys), ROWS_PER_BATCH):
            yield slice(first, first + ROWS_PER_BATCH)
        return
    first = size_bytes = 0
    for end, (key, value) in enumerate(zip(keys, values, strict=True), start=1):
        size_bytes += len(key) + len(value or b"")
        if end - first == ROWS_PER_BATCH or size_bytes >= BYTES_PER_BATCH or end == len(keys):
            yield slice(first, end)
            first, size_bytes = end, 0


def _heads(keys: Sequence[bytes]) -> tuple[pa.Array, pa.Array]:
    """Returns the key groups and state ids that the keys start with."""
    heads = array("H", b"".join([key[:4] for key in keys]))
    if sys.byteorder == "little":
        heads.byteswap()
    return tuple(
        pa.Array.from_buffers(pa.uint16(), len(keys), [None, pa.py_buffer(column)])
        for column in (heads[0::2], heads[1::2])
    )


def _check_schema(schema: pa.Schema) -> None:
    version = (schema.metadata or {}).get(_VERSION_KEY)
    if version is None:
        raise CorruptSegmentError("the segment is an Arrow file, but not one that Cairn wrote")
    if version != FORMAT_VERSION.encode():
        raise CorruptSegmentError(
            f"the segment has format version {version.decode(errors='replace')}, this version of "
            f"Cairn reads version {FORMAT_VERSION}: use the version of Cairn that wrote it"
        )
    for binary in (pa.binary(), pa.large_binary()):
        fields = [*_FIXED_FIELDS, pa.field("key", binary, nullable=False), ("value", binary)]
        if schema.equals(pa.schema(fields)):
            return
    raise CorruptSegmentError(f"the segment has other columns than it should: {schema.names}")


def _only(batch: pa.RecordBatch, key_groups: KeyGroupRange) -> pa.RecordBatch:
    column = batch.column("key_group")

    def first_from(key_group: int) -> int:
        return bisect.bisect_left(
            range(batch.num_rows), key_group, key=lambda row: column[row].as_py()
        )

    start = first_from(key_groups.start)
    return batch.slice(start, max(0, first_from(key_groups.end) - start))
