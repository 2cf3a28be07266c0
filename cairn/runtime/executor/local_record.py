"""What an environment records of its state: which checkpoint's it is, its weight and its digest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import msgspec

from cairn.errors import DamagedStateError

RECORD_KEY = b"\x00"
"""Before every entry's, so that entries can be appended behind the last one."""
_CHECKSUM_BYTES = 4
_SUM_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Position:
    """Which checkpoint's state an environment holds.

    `lineage` is the id of the run that made the checkpoint, so that a metastore restored from a
    backup, which gives the same ids again, is not taken for the one this state belongs to. `epoch`
    is that of the run which put the state here.
    """

    checkpoint_id: int
    lineage: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Weight:
    """About how many bytes a restore of a subtask would read: its bases, and those on top."""

    base_bytes: int = 0
    change_bytes: int = 0


@dataclass(slots=True)
class Digest:
    """How many entries there are, and the sum of their checksums, which has no order.

    So it follows from what is changed alone: the old entry's checksum is subtracted, the new one's
    added. Entries are those of LMDB, with the keys that stand for long ones.
    """

    entries: int = 0
    checksum: int = 0

    def add(self, keys: Sequence[bytes], values: Iterable[bytes]) -> None:
        """Adds entries. Nothing is done in Python for each of them."""
        self.entries += len(keys)
        self.checksum = (self.checksum + _sum(keys, values)) & _SUM_MASK

    def remove(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Removes entries that were added."""
        if entries:
            keys, values = zip(*entries, strict=True)
            self.entries -= len(entries)
            self.checksum = (self.checksum - _sum(keys, values)) & _SUM_MASK


def _sum(keys: Iterable[bytes], values: Iterable[bytes]) -> int:
    # CRC-32 of key and value: by two maps, as a function for each entry would take thrice as long.
    return sum(map(crc32, values, map(crc32, keys)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record of an environment; the empty one, of an environment without any entry."""

    position: Position | None = None
    weight: Weight = Weight()
    digest: Digest = field(default_factory=Digest)

    def encode(self) -> bytes:
        """Returns it as bytes, with a checksum of its own."""
        data = msgspec.msgpack.encode(self)
        return crc32(data).to_bytes(_CHECKSUM_BYTES, "big") + data


def decode_record(stored: bytes | None) -> Record:
    """Returns the record of an environment from what is stored under its key.

    Raises:
        DamagedStateError: the bytes are not those that were written.
    """
    if stored is None:
        return Record()
    data = stored[_CHECKSUM_BYTES:]
    if crc32(data).to_bytes(_CHECKSUM_BYTES, "big") != stored[:_CHECKSUM_BYTES]:
        raise DamagedStateError("the record of local state is not what was written")
    return msgspec.msgpack.decode(data, type=Record)
