from __future__ import annotations

import pytest

from cairn.units import parse_duration_ms, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("0 ms", 0),
        ("500 ms", 500),
        ("3s", 3000),
        ("10 min", 600_000),
        ("10m", 600_000),
        (" 1 hour ", 3_600_000),
        ("2 Hours", 7_200_000),
        ("7 d", 604_800_000),
    ],
)
def test_durations_are_taken_as_flink_and_spark_write_them(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1 b", 1),
        ("64k", 65_536),
        ("64 KB", 65_536),
        ("64m", 67_108_864),
        ("1 GiB", 1 << 30),
        ("2t", 2 << 40),
    ],
)
def test_sizes_are_taken_as_flink_and_spark_write_them(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", "10", "ms", "-1 s", "1.5 h", "1 fortnight", "1 h 5 min", "1 mb", "٣ s", "9" * 19 + " s"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "10", "64 m b", "1 h", "1_0 mb", "-1 mb"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size_bytes(text)
