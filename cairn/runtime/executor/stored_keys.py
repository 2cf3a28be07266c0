"""How entries' keys are stored in LMDB, whose keys have a limit (ADR 0006)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cairn.state.entries import PREFIX_HEAD_BYTES, split

KEY_FORM = "4"
"""Of what is stored: keys, see `stored_key`, and the record. No other can be read."""
KEY_LIMIT_BYTES = 511
"""LMDB's. Only a key that ends in a hash is as long as this."""
_HASH_BYTES = 32
HEAD_BYTES = KEY_LIMIT_BYTES - _HASH_BYTES
PREFIX_LIMIT_BYTES = 400
"""Of a prefix that is stored as it is. Leaves room for 79 bytes of the suffix before a hash."""
_LONGEST_GROUPING_KEY = (PREFIX_LIMIT_BYTES - PREFIX_HEAD_BYTES).to_bytes(4, "big")


def stored_prefix(prefix: bytes) -> bytes:
    """Returns what stands for an entry prefix in LMDB: a long one's first bytes and its hash.

    The first bytes hold the length, so no prefix that is stored as it is looks like it.
    """
    if len(prefix) <= PREFIX_LIMIT_BYTES:
        return prefix
    return prefix[:PREFIX_HEAD_BYTES] + hashlib.sha256(prefix).digest()


def stored_key(key: bytes) -> bytes:
    """Returns the key that stands for an entry's in LMDB, under its limit.

    Within one prefix the order is that of the suffixes, but for such as differ after HEAD_BYTES
    of the stored key: they end in their hash.
    """
    if len(key) <= PREFIX_LIMIT_BYTES:
        return key
    suffix = split(key).suffix
    stored = stored_prefix(key[: len(key) - len(suffix)]) + suffix
    if len(stored) < KEY_LIMIT_BYTES:
        return stored
    return stored[:HEAD_BYTES] + hashlib.sha256(suffix).digest()


def stored_entry(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Returns an entry as LMDB has it: where another key stands for its own, the value has it."""
    if len(key) <= PREFIX_LIMIT_BYTES:
        return key, value
    stored = stored_key(key)
    if stored == key:
        return key, value
    return stored, len(key).to_bytes(4, "big") + key + value


def unpack(data: bytes) -> tuple[bytes, bytes]:
    """Returns key and value from the stored value of a key that another one stands for."""
    end = 4 + int.from_bytes(data[:4], "big")
    return data[4:end], data[end:]


def _is_real(stored: bytes) -> bool:
    return len(stored) < KEY_LIMIT_BYTES and stored[4:8] <= _LONGEST_GROUPING_KEY


def are_real(stored_keys: Sequence[bytes]) -> bool:
    """Tells whether all keys are stored as they are."""
    longest = max(map(len, stored_keys), default=0)
    longest_grouping_key = max([key[4:8] for key in stored_keys], default=b"")
    return longest < KEY_LIMIT_BYTES and longest_grouping_key <= _LONGEST_GROUPING_KEY


def real_entry(stored: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Returns the entry that is stored so."""
    return (stored, value) if _is_real(stored) else unpack(value)
