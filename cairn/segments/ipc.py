"""Arrow IPC files of segments: none unpacks to much more than the size that is recorded of it.

Compressed buffers say in their first 8 bytes what they unpack to, and zstd reaches thousands of
bytes for each one. So a writer takes LZ4, which reaches 255, where zstd did better than that; and a
reader adds up what a file claims before it unpacks anything.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from mmap import mmap

import pyarrow as pa

from cairn.errors import CorruptSegmentError

UNPACKED_PER_BYTE = 256
"""How many bytes a file unpacks to for each of its own, at most."""

_MAGIC = b"ARROW1"
_UNPACKED_PER_BYTE_WRITTEN = 200  # less than a reader takes, as alignment is not counted
_LARGEST_FREE_BYTES = 1 << 16  # of a file of a few bytes
_RECORD_BATCH = 3
_NOT_COMPRESSED = -1
_MARK = 0xFFFFFFFF
_int16 = struct.Struct("<h").unpack_from
_int32 = struct.Struct("<i").unpack_from
_uint32 = struct.Struct("<I").unpack_from
_int64 = struct.Struct("<q").unpack_from
_block = struct.Struct("<qi4xq")
_pair = struct.Struct("<qq")


def write_file(
    schema: pa.Schema,
    batches: Callable[[], Iterable[pa.RecordBatch]],
    *,
    unpacked_bytes: int,
    codec: str = "zstd",
    use_threads: bool = True,
    ending: Callable[[memoryview], bytes] | None = None,
) -> bytes:
    """Returns record batches as an IPC file, and after it what `ending` makes of the file.

    `unpacked_bytes` is about what the batches have.
    """
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=use_threads)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for batch in batches():
            writer.write(batch)
    data = memoryview(sink.getvalue())
    if codec != "lz4" and not has_readable_size(data, unpacked_bytes):
        return write_file(
            schema,
            batches,
            unpacked_bytes=unpacked_bytes,
            codec="lz4",
            use_threads=use_threads,
            ending=ending,
        )
    return b"".join([data, ending(data)]) if ending else bytes(data)


def has_readable_size(data: bytes | memoryview | mmap, unpacked_bytes: int) -> bool:
    """Tells whether a file unpacks to no more than a reader takes; with LZ4 it does."""
    return unpacked_bytes <= _UNPACKED_PER_BYTE_WRITTEN * len(data)


def open_file(
    data: bytes | memoryview, *, use_threads: bool = True
) -> pa.ipc.RecordBatchFileReader:
    """Returns a reader of an IPC file that unpacks to no more than `UNPACKED_PER_BYTE` allows.

    Raises:
        pyarrow.ArrowInvalid: it claims to unpack to more, or is no such file; see `decoding`.
    """
    limit_bytes = max(UNPACKED_PER_BYTE * len(data), _LARGEST_FREE_BYTES)
    try:
        unpacked_bytes = sum(_unpacked(data, limit_bytes))
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid(f"it is no Arrow file: {error}") from error
    _check_claim(len(data), unpacked_bytes, limit_bytes)
    options = pa.ipc.IpcReadOptions(use_threads=use_threads)
    return pa.ipc.open_file(pa.BufferReader(data), options=options)


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Makes CorruptSegmentError of all that pyarrow raises for bytes that it cannot read."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        raise CorruptSegmentError(f"{what} cannot be decoded: {error}") from error


def places_of(data: bytes | memoryview | mmap) -> Iterator[tuple[int, int]]:
    """Yields the place and the size of each record batch of an IPC file, by its footer."""
    for offset, head_bytes, body_bytes in _blocks(data):
        yield offset, head_bytes + body_bytes


def open_batches(
    data: bytes, schema: pa.Schema, *, count: int, limit_bytes: int, use_threads: bool = True
) -> pa.ipc.RecordBatchStreamReader:
    """Returns a reader of `count` record batches cut out of a file that has this schema.

    Raises:
        pyarrow.ArrowInvalid: they claim to unpack to more than `limit_bytes`, or are not as many.
    """
    place = unpacked_bytes = found = 0
    try:
        while place < len(data):
            head_bytes = 8 + _int32(data, place + 4)[0]
            if head_bytes <= 8:
                raise pa.ArrowInvalid("a record batch has no head")
            unpacked_bytes += _unpacked_batch(data, place, head_bytes, limit_bytes)
            place += head_bytes + _body_bytes(data, place)
            found += 1
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid(f"it has no record batches: {error}") from error
    if (found, place) != (count, len(data)):
        raise pa.ArrowInvalid(f"it has {found} record batches in {place} bytes, not {count}")
    _check_claim(len(data), unpacked_bytes, limit_bytes)
    stream = pa.BufferReader(b"".join([memoryview(schema.serialize()), data]))
    return pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(use_threads=use_threads))


def _check_claim(size_bytes: int, unpacked_bytes: int, limit_bytes: int) -> None:
    if unpacked_bytes > limit_bytes:
        raise pa.ArrowInvalid(
            f"its {size_bytes} bytes claim to unpack to {unpacked_bytes}, more than any segment's"
        )


def _unpacked(data: bytes | memoryview, limit_bytes: int) -> Iterator[int]:
    """Yields what each record batch claims to unpack to, by the footer and the batches' heads."""
    for offset, head_bytes, _ in _blocks(data):
        yield _unpacked_batch(data, offset, head_bytes, limit_bytes)


def _blocks(data: bytes | memoryview | mmap) -> Iterator[tuple[int, int, int]]:
    """Yields the place of each record batch, and the sizes of its head and its body.

    Their form is that of flatbuffers, https://arrow.apache.org/docs/format/Columnar.html.
    """
    if data[-len(_MAGIC) :] != _MAGIC:
        raise pa.ArrowInvalid("it is no Arrow file")
    end = len(data) - len(_MAGIC) - 4
    (footer_bytes,) = _int32(data, end)
    footer = _root(data, end - footer_bytes)
    if _vector(data, footer, 2, 24)[1]:
        raise pa.ArrowInvalid("it has dictionaries, which no segment has")
    first, count = _vector(data, footer, 3, 24)
    for place in range(first, first + 24 * count, 24):
        yield _block.unpack_from(data, place)


def _body_bytes(data: bytes, place: int) -> int:
    """Returns how many bytes follow the head of a message, by that head."""
    message = _root(data, place + 8)
    field = _field(data, message, 3)
    body_bytes = _int64(data, field)[0] if field else 0
    if body_bytes < 0:
        raise pa.ArrowInvalid("a record batch has a size below 0")
    return int(body_bytes)


def _unpacked_batch(
    data: bytes | memoryview, offset: int, head_bytes: int, limit_bytes: int
) -> int:
    if not 0 <= offset <= offset + head_bytes <= len(data):
        raise pa.ArrowInvalid("a record batch lies outside of it")
    # Without one Arrow takes the length from there: for another place than is looked at here.
    if _uint32(data, offset)[0] != _MARK:
        raise pa.ArrowInvalid("a record batch has no mark at its start")
    message = _root(data, offset + 8)  # after a mark and the length
    kind, head = _field(data, message, 1), _field(data, message, 2)
    if not kind or not head or data[kind] != _RECORD_BATCH:
        raise pa.ArrowInvalid("it has messages that are no record batches")
    batch = head + _uint32(data, head)[0]
    first, count = _vector(data, batch, 1, 16)
    for place in range(first, first + 16 * count, 16):
        # Nulls of type null take no bytes: their number is bounded by itself.
        if not 0 <= _int64(data, place)[0] <= 8 * limit_bytes:
            raise pa.ArrowInvalid("a column claims more rows than its bytes can have")
    is_compressed, body = _field(data, batch, 3), offset + head_bytes
    first, count = _vector(data, batch, 2, 16)
    unpacked_bytes = 0
    for place in range(first, first + 16 * count, 16):
        start, size_bytes = _pair.unpack_from(data, place)
        if start < 0 or size_bytes < 0 or body + start + size_bytes > len(data):
            raise pa.ArrowInvalid("a column lies outside of it")
        if is_compressed and size_bytes:
            (claimed,) = _int64(data, body + start)
            size_bytes = size_bytes if claimed == _NOT_COMPRESSED else claimed
            if size_bytes < 0:
                raise pa.ArrowInvalid("a column claims a size below 0")
        unpacked_bytes += size_bytes
    return unpacked_bytes


def _root(data: bytes | memoryview | mmap, start: int) -> int:
    if start < 0:
        raise pa.ArrowInvalid("it is no Arrow file")
    return int(start + _uint32(data, start)[0])


def _field(data: bytes | memoryview | mmap, table: int, number: int) -> int:
    """Returns where a table's field is; 0 if it has none."""
    vtable = table - _int32(data, table)[0]
    if vtable < 0:
        raise pa.ArrowInvalid("it is no Arrow file")
    at = 4 + 2 * number
    if at >= _int16(data, vtable)[0]:
        return 0
    (offset,) = _int16(data, vtable + at)
    return int(table + offset) if offset else 0


def _vector(
    data: bytes | memoryview | mmap, table: int, number: int, item_bytes: int
) -> tuple[int, int]:
    """Returns where the items of a table's field start, and their number."""
    field = _field(data, table, number)
    if not field:
        return 0, 0
    start = field + _uint32(data, field)[0]
    (count,) = _uint32(data, start)
    if start + 4 + item_bytes * count > len(data):
        raise pa.ArrowInvalid("it is no Arrow file")
    return start + 4, count
