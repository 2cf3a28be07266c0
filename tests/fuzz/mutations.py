"""Changes of bytes and of JSON values, at random but the same for the same seed."""

from __future__ import annotations

import json
from random import Random
from typing import Any

_NUMBERS = [0, 1, 2, 7, 8, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1]
_NUMBERS += [2**40, 2**63 - 1, 2**64 - 1, 0x7FFF_FFF0]
_VALUES: list[Any] = [
    None,
    -1,
    0,
    1,
    2**15,
    2**31,
    2**63,
    2**64,
    10**30,
    1.5,
    1e308,
    "",
    "x" * 9_000,
]
_VALUES += ["../../etc/passwd", "/abs", "a/../b", "\u0000", "\ud7ff", "١", [], {}, True, [[]] * 50]
_VALUES += ["long", "struct", "decimal(5,2)", {"type": "struct", "fields": [{}]}, {"type": "array"}]


def mutated(random: Random, data: bytes, *, last: int | None = None) -> bytes:
    """Returns bytes with one to eight changes, in the last ones only if `last` says how many."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 3, 8])):
        if not changed:
            break
        first = 0 if last is None else max(0, len(changed) - last)
        _change(random, changed, random.randrange(first, len(changed)))
    return bytes(changed)


def random_bytes(random: Random, data: bytes) -> bytes:
    """Returns bytes that have nothing of the given but their ends, or not even those."""
    middle = random.randbytes(random.choice([0, 1, 8, 100, 1000]))
    if random.random() < 0.5:
        return middle
    kept = random.randrange(min(64, len(data)) + 1)
    return data[:kept] + middle + data[len(data) - kept :]


def mutated_json(random: Random, value: Any) -> Any:
    """Returns a copy of a JSON value with one to three parts replaced or removed."""
    changed = json.loads(json.dumps(value))
    for _ in range(random.choice([1, 1, 2, 3])):
        paths = [*_paths(changed)]
        if not paths:
            break
        container, key = random.choice(paths)
        if random.random() < 0.15:
            del container[key]
        elif random.random() < 0.2:
            container[key] = json.loads(json.dumps(random.choice(paths)[0]))
        else:
            container[key] = json.loads(json.dumps(random.choice(_VALUES)))
    return changed


def _change(random: Random, changed: bytearray, at: int) -> None:
    kind = random.randrange(7)
    if kind == 0:
        changed[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        changed[at] = random.randrange(256)
    elif kind == 2:
        width = random.choice([2, 4, 8])
        number = random.choice(_NUMBERS) & ((1 << 8 * width) - 1)
        changed[at : at + width] = number.to_bytes(width, "little")
    elif kind == 3:
        del changed[at : at + random.choice([1, 4, 8, 64])]
    elif kind == 4:
        changed[at:at] = random.randbytes(random.choice([1, 4, 8]))
    elif kind == 5:
        del changed[at:]
    else:
        other, size = random.randrange(len(changed)), random.randrange(1, 64)
        changed[at : at + size] = changed[other : other + size]


def _paths(value: Any) -> list[tuple[Any, Any]]:
    keys: list[Any] = [*value] if isinstance(value, dict) else []
    keys = [*range(len(value))] if isinstance(value, list) else keys
    return [(value, key) for key in keys] + [p for key in keys for p in _paths(value[key])]
