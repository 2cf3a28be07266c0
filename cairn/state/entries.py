"""The binary key of a state entry.

    key group (2 bytes) | state id (2) | length of the grouping key (4) | grouping key | suffix

Numbers are big-endian. The suffix is the user key's bytes in a map, the sequence number (8 bytes)
in a list, nothing for a value. So all entries of one grouping key and one state share a prefix
that no other key has, and everything sorts by key group, then state.

Timers and indexes by time are ordinary entries, under state ids that no state variable gets:

    TIMERS            grouping key: as it is   suffix: expiry (8)
    TIMERS_BY_EXPIRY  grouping key: none       suffix: expiry (8) | grouping key
    TTL_BY_EXPIRY     grouping key: none       suffix: time (8) | entry key without its key group
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from cairn.keygroups import KeyGroupRange

TIMERS = 0x8000
TIMERS_BY_EXPIRY = 0x8001
TTL_BY_EXPIRY = 0x8002
TIME_BYTES = 8
FIRST_MS, LAST_MS = -(2**63), 2**63 - 1
"""The range of times in keys, as of Spark's long."""

_HEAD = struct.Struct(">HHI")
_pack_head = _HEAD.pack
_STATE_HEAD = struct.Struct(">HH")
_pack_state = _STATE_HEAD.pack
STATE_HEAD_BYTES = _STATE_HEAD.size
"""Of a prefix of all entries of one state in a key group."""
PREFIX_HEAD_BYTES = _HEAD.size
"""Of a prefix, before the grouping key; the last 4 hold the grouping key's length."""
_pack_unsigned = struct.Struct(">Q").pack
list_suffix = _pack_unsigned
"""`list_suffix(sequence) -> bytes`: the suffix of a list's element, sequence 0 to 2**64 - 1."""


class EntryKey(NamedTuple):
    """The parts of an entry's binary key."""

    key_group: int
    state_id: int
    key: bytes
    suffix: bytes


def entry_prefix(key_group: int, state_id: int, key: bytes) -> bytes:
    """Returns the prefix of all entries of a grouping key in one state.

    It is also the whole key of a value state's entry. `key_group` and `state_id` are 0 to 65535.
    """
    return _pack_head(key_group, state_id, len(key)) + key


def state_prefix(key_group: int, state_id: int) -> bytes:
    """Returns the prefix of all entries of one state in a key group."""
    return _pack_state(key_group, state_id)


def split(entry_key: bytes) -> EntryKey:
    """Returns the parts of an entry's key.

    Raises:
        ValueError: the bytes end before the grouping key does.
    """
    size_bytes = len(entry_key)
    if size_bytes < _HEAD.size:
        raise ValueError(f"not an entry's key: {size_bytes} bytes, at least {_HEAD.size} expected")
    key_group, state_id, key_bytes = _HEAD.unpack_from(entry_key)
    end = _HEAD.size + key_bytes
    if size_bytes < end:
        raise ValueError(f"not an entry's key: {size_bytes} bytes, at least {end} expected")
    return EntryKey(key_group, state_id, entry_key[_HEAD.size : end], entry_key[end:])


def list_sequence(suffix: bytes) -> int:
    """Returns the sequence number of a list's element from the suffix of its key."""
    return int.from_bytes(suffix, "big")


def encode_time(time_ms: int) -> bytes:
    """Returns a time from FIRST_MS to LAST_MS in 8 bytes that sort as the times do."""
    # Shifted, so that times before 1970 sort first: bytes are compared without a sign.
    return _pack_unsigned(time_ms - FIRST_MS)


def decode_time(data: bytes) -> int:
    """Returns the time that the bytes start with."""
    return int.from_bytes(data[:TIME_BYTES], "big") + FIRST_MS


def key_group_bounds(key_groups: KeyGroupRange) -> tuple[bytes, bytes]:
    """Returns `(lower, upper)` such that `lower <= key < upper` for exactly their entries' keys.

    The range's end is at most 65535.
    """
    return key_groups.start.to_bytes(2, "big"), key_groups.end.to_bytes(2, "big")
