"""Parts that are read at once: all results, bounded memory, the first error, and an early end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from cairn.errors import StorageError
from cairn.maintenance.find_orphans import GROUPS, THREADS
from cairn.maintenance.in_parallel import in_parallel
from cairn.storage.inventory import FoundObject, KeyRange, key_ranges

LATENCY_S = 0.02
PAGE_OBJECTS = 10


def test_all_results_are_there_those_of_a_part_in_order() -> None:
    found = list(in_parallel(lambda part: [(part, n) for n in range(20)], range(50), threads=4))
    assert sorted(found) == [(part, n) for part in range(50) for n in range(20)]
    for part in range(50):
        assert [n for one, n in found if one == part] == list(range(20))


def test_without_parts_there_are_no_results() -> None:
    assert list(in_parallel(lambda part: [part], [], threads=4)) == []


def test_the_error_of_a_part_is_raised_and_ends_the_others() -> None:
    def read(part: int) -> Iterator[int]:
        yield part
        if part == 7:
            raise StorageError("503 SlowDown")

    with pytest.raises(StorageError, match="503"):
        list(in_parallel(read, range(1000), threads=4))


def test_who_takes_no_more_leaves_no_thread_and_results_are_bounded() -> None:
    made = [0]

    def read(part: int) -> Iterator[int]:
        while True:
            made[0] += 1
            yield part

    results = in_parallel(read, range(100), threads=4)
    assert next(results) in range(100)
    time.sleep(0.3)
    assert made[0] <= 4 + 4 + 1
    results.close()  # type: ignore[attr-defined]
    assert not [one for one in threading.enumerate() if "ThreadPoolExecutor" in one.name]


class SlowInventory:
    """Answers each request after a while: directories of executors, with pages of objects."""

    splits_directories = True

    def __init__(self, directories: int, objects: int) -> None:
        self._names = [f"{number}-tm" for number in range(directories)]
        self._paths = sorted(
            f"job/taskmanager-owned/{name}/{number * 7919 % 65536:04x}"
            for name in self._names
            for number in range(objects)
        )

    def directories(self, path: str) -> list[str]:
        time.sleep(LATENCY_S)
        below = {"job": ["taskmanager-owned"], "job/taskmanager-owned": self._names}
        return [f"{path}/{name}" for name in below.get(path, [])]

    def list_all(self, keys: KeyRange) -> Iterator[FoundObject]:
        held = [path for path in self._paths if keys.holds(path)]
        for start in range(0, max(len(held), 1), PAGE_OBJECTS):
            time.sleep(LATENCY_S)
            for path in held[start : start + PAGE_OBJECTS]:
                yield FoundObject(
                    path=path, size_bytes=1, modified_at=datetime.now(UTC), version="1"
                )


@pytest.mark.slow
@pytest.mark.parametrize(("directories", "objects"), [(1, 2000), (40, 50)])
def test_a_listing_by_ranges_is_eight_times_as_fast_as_one_thread(
    directories: int, objects: int
) -> None:
    inventory = SlowInventory(directories, objects)
    began = time.monotonic()
    one = [found.path for found in inventory.list_all(KeyRange("job/"))]
    alone_s = time.monotonic() - began
    began = time.monotonic()
    ranges = key_ranges(inventory, "job", GROUPS)  # type: ignore[arg-type]
    found = in_parallel(inventory.list_all, ranges, threads=THREADS)
    assert sorted(one.path for one in found) == one
    assert alone_s / (time.monotonic() - began) > 8
