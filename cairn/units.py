"""Durations and sizes as people write them: by Flink's units and by Spark's."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAMES_OF_MS = {
    1: "ms milli millis millisecond milliseconds",
    1000: "s sec secs second seconds",
    60_000: "m min mins minute minutes",
    3_600_000: "h hour hours",
    86_400_000: "d day days",
}
_NAMES_OF_BYTES = {
    1: "b byte bytes",
    1 << 10: "k kb kib",
    1 << 20: "m mb mib",
    1 << 30: "g gb gib",
    1 << 40: "t tb tib",
}
_MS = {name: ms for ms, names in _NAMES_OF_MS.items() for name in names.split()}
_BYTES = {name: size for size, names in _NAMES_OF_BYTES.items() for name in names.split()}
_QUANTITY = re.compile(r"\s*([0-9]{1,18})\s*([a-z]+)\s*")


def parse_duration_ms(value: object) -> int:
    """Returns the milliseconds of a text such as `'10 min'`, `'500 ms'`, `'3s'`, `'1 hour'`.

    Raises:
        ValueError: it is no whole number of a unit from milliseconds to days.
    """
    return _parse(value, _MS, "a duration")


def parse_size_bytes(value: object) -> int:
    """Returns the bytes of a text such as `'128 mb'`, `'64k'`, `'1 GiB'`; 1 kb is 1,024 bytes.

    Raises:
        ValueError: it is no whole number of a unit from bytes to terabytes.
    """
    return _parse(value, _BYTES, "a size")


def _parse(value: object, units: Mapping[str, int], what: str) -> int:
    match = _QUANTITY.fullmatch(str(value).lower())
    if match is None or match[2] not in units:
        raise ValueError(f"not {what}: {value!r}")
    return int(match[1]) * units[match[2]]
