"""The bytes of channel state: rows that a subtask has read and not processed.

An Arrow IPC file, zstd, with the columns `key_group` (uint16), `input` (uint16: which of the
operator's inputs a row is from) and `row` (a struct of the row's columns). Rows are in order of
key group, and those of a key group in their order of arrival. So a subtask of any parallelism
takes the rows of its own key groups and no others: each row is restored once (FLIP-547). The file's
metadata describes it, each key with `cairn.` before it.

Nothing writes them yet: docs/protocol.md, channel state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cairn.errors import CorruptSegmentError
from cairn.handles import SegmentHandle
from cairn.keygroups import KeyGroupRange
from cairn.segments.format import BYTES_PER_BATCH, ROWS_PER_BATCH, rows_of
from cairn.segments.ipc import decoding, open_file, write_file
from cairn.segments.reader import corrupt, read_bytes
from cairn.storage.store import ObjectStore

FORMAT_VERSION = "1"

_VERSION_KEY = b"cairn.channel_version"
_HEAD = (
    pa.field("key_group", pa.uint16(), nullable=False),
    pa.field("input", pa.uint16(), nullable=False),
)
_COLLECTIONS = (pa.types.is_struct, pa.types.is_list, pa.types.is_large_list, pa.types.is_map)
_SCALARS = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
)


@dataclass(frozen=True, slots=True)
class InFlight:
    """Rows in flight, with the key group and the input of each (both uint16)."""

    key_groups: pa.Array
    inputs: pa.Array
    rows: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.rows.num_rows)


def encode(rows: InFlight, *, metadata: Mapping[str, str]) -> bytes:
    """Returns a segment of rows, which may be in any order of key groups.

    `metadata` describes it, see `cairn.segments.format.segment_metadata`.
    """
    struct = pa.StructArray.from_arrays(rows.rows.columns, fields=list(rows.rows.schema))
    schema = pa.schema(
        [*_HEAD, pa.field("row", struct.type, nullable=False)],
        metadata={
            _VERSION_KEY: FORMAT_VERSION.encode(),
            **{f"cairn.{name}".encode(): text.encode() for name, text in metadata.items()},
        },
    )
    batch = pa.RecordBatch.from_arrays([rows.key_groups, rows.inputs, struct], schema=schema)
    batch = batch.take(pc.array_sort_indices(rows.key_groups))  # stable
    step = _rows_per_batch(batch)
    return write_file(
        schema,
        lambda: (batch.slice(start, step) for start in range(0, batch.num_rows, step)),
        unpacked_bytes=batch.nbytes,
    )


def decode(data: bytes, key_groups: KeyGroupRange | None = None) -> Iterator[InFlight]:
    """Yields a segment's rows by record batch; only those of `key_groups` if given.

    Raises:
        CorruptSegmentError: the bytes are no channel state, or of another format version.
    """
    with decoding("the channel state"):
        reader = open_file(data)
        _check_schema(reader.schema)
        last = 0
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            batch.validate(full=True)
            # Bisected below: rows out of order would be left out without a word.
            last = _check_order(batch, last)
            if key_groups is not None:
                batch = rows_of(batch, key_groups)
            if batch.num_rows:
                rows = pa.RecordBatch.from_struct_array(batch.column("row"))
                yield InFlight(batch.column("key_group"), batch.column("input"), rows)


def read_channel(
    store: ObjectStore, handle: SegmentHandle, key_groups: KeyGroupRange, *, job: str
) -> Iterator[InFlight]:
    """Yields the rows of some key groups from a segment in storage.

    Raises:
        CorruptSegmentError: the bytes are not those that were recorded, or no channel state.
        StorageError: the object is missing or cannot be read.
    """
    data = read_bytes(store, handle, job=job)
    try:
        yield from decode(data, key_groups)
    except CorruptSegmentError as error:
        raise corrupt(job, handle, f"segment {handle.segment_id}: {error.message}") from error


def _rows_per_batch(batch: pa.RecordBatch) -> int:
    """Returns how many rows a record batch has, so that one fits into memory."""
    row_bytes = max(1, batch.nbytes // max(1, batch.num_rows))
    return int(max(1, min(ROWS_PER_BATCH, BYTES_PER_BATCH // row_bytes)))


def _check_schema(schema: pa.Schema) -> None:
    version = (schema.metadata or {}).get(_VERSION_KEY)
    if version is None:
        raise CorruptSegmentError("the segment is an Arrow file, but no channel state")
    if version != FORMAT_VERSION.encode():
        raise CorruptSegmentError(
            f"the channel state has format version {version.decode(errors='replace')}, this "
            f"version of Cairn reads version {FORMAT_VERSION}: use the one that wrote it"
        )
    if (
        len(schema) != 3
        or not pa.schema(list(schema)[:2]).equals(pa.schema(_HEAD))
        or schema.names[2] != "row"
        or not pa.types.is_struct(schema.types[2])
        or not _is_of_rows(schema.types[2])
    ):
        raise CorruptSegmentError(f"the channel state has other columns: {schema.names}")


def _is_of_rows(kind: pa.DataType) -> bool:
    """Tells whether Spark's rows have the type: not those where few bytes stand for many values."""
    if pa.types.is_nested(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return any(is_kind(kind) for is_kind in _COLLECTIONS) and all(
            field.name is not None and _is_of_rows(field.type)  # a name that is no text raises here
            for field in fields
        )
    return any(is_kind(kind) for is_kind in _SCALARS)


def _check_order(batch: pa.RecordBatch, last: int) -> int:
    """Returns the last key group of a batch that continues after `last`."""
    if not batch.num_rows:
        return last
    groups = batch.column("key_group")
    ascends = pc.all(pc.greater_equal(groups[1:], groups[:-1])).as_py()
    if groups.null_count or batch.column("input").null_count or ascends is False:
        raise CorruptSegmentError("the channel state is not in order of key groups")
    if groups[0].as_py() < last:
        raise CorruptSegmentError("the channel state is not in order of key groups")
    return int(groups[-1].as_py())
