"""How fast a job's objects are listed: in ranges by as many threads as a sweep has, and by one."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Iterator

import boto3
from botocore.config import Config

from benchmarks.apart import Apart, run_apart
from benchmarks.maintenance_shape import Figure, Place, Sizes, memory_figure
from benchmarks.stub_s3 import BUCKET, stub_s3
from cairn.layout import shared_file, task_manager_file
from cairn.maintenance.find_orphans import GROUPS, THREADS
from cairn.maintenance.in_parallel import in_parallel
from cairn.storage import inventory_of, open_store
from cairn.storage.inventory import KeyRange, key_ranges

LEAST_SPEEDUP = 8.0
_JOB_ID = "listed-0"
_SHARED_SHARE = 0.04
"""Of the objects: bases. All others are of group commits."""


def measure_listing(place: Place) -> list[Figure]:
    """Returns how long the listing of one root takes, and how much faster many threads are."""
    sizes = place.sizes
    plain_s, one_s, many_s = [], [], []
    memory_mb = 0.0
    with stub_s3() as s3:
        s3.fill(list(_paths(sizes)), 4_000)
        s3.slow_down(sizes.delay_ms)
        for _ in range(sizes.rounds):
            plain_s.append(_checked(sizes, run_apart(_list_plainly)))
            one_s.append(_checked(sizes, run_apart(_list_in_ranges, 1)))
            many = run_apart(_list_in_ranges, THREADS)
            many_s.append(_checked(sizes, many))
            memory_mb = max(memory_mb, many.memory_mb)
    return _figures(
        sizes,
        statistics.median(plain_s),
        statistics.median(one_s),
        statistics.median(many_s),
        memory_mb,
    )


def _checked(sizes: Sizes, done: Apart[tuple[float, int]]) -> float:
    """Returns how long a listing took that has found all objects."""
    seconds, listed = done.found
    if listed != sizes.listed_objects:
        raise RuntimeError(f"{listed} of {sizes.listed_objects} objects were listed")
    return seconds


def _figures(
    sizes: Sizes, plain_s: float, one_s: float, many_s: float, memory_mb: float
) -> list[Figure]:
    name = f"{sizes.listed_objects:,} objects"
    return [
        _figure(f"{name}, boto3 in one thread", sizes.listed_objects / plain_s, "objects/s"),
        _figure(f"{name}, one thread", sizes.listed_objects / one_s, "objects/s"),
        _figure(f"{name}, {THREADS} threads", sizes.listed_objects / many_s, "objects/s"),
        _figure(f"{THREADS} threads over one", one_s / many_s, "times"),
        Figure(
            workload="listing",
            name=f"{THREADS} threads over boto3 in one",
            value=plain_s / many_s,
            unit="times",
            wanted=LEAST_SPEEDUP,
        ),
        memory_figure("listing", name, memory_mb),
    ]


def _figure(name: str, value: float, unit: str) -> Figure:
    return Figure(workload="listing", name=name, value=value, unit=unit)


def _paths(sizes: Sizes) -> Iterator[str]:
    """Yields the paths of a job: few bases of many subtasks, many group commits of executors."""
    bases = int(sizes.listed_objects * _SHARED_SHARE)
    for number in range(sizes.listed_objects):
        file_id = str(uuid.uuid4())
        if number < bases:
            yield shared_file(_JOB_ID, number % sizes.parallelism, sizes.parallelism, file_id)
        else:
            executor = f"1-{number % sizes.executors:012x}"
            yield task_manager_file(_JOB_ID, executor, file_id)


def _list_plainly() -> tuple[float, int]:
    """Lists as any other program does: boto3's pages, one after the other."""
    began_s, listed = time.monotonic(), 0
    client = boto3.Session().client("s3", config=Config(s3={"addressing_style": "path"}))
    pages = client.get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=BUCKET, Prefix=f"{_JOB_ID}/"):
        listed += len(page.get("Contents", []))
    return time.monotonic() - began_s, listed


def _list_in_ranges(threads: int) -> tuple[float, int]:
    """Lists as a sweep does, without looking at rows."""
    began_s = time.monotonic()
    inventory = inventory_of(open_store(f"s3://{BUCKET}"))

    def count(keys: KeyRange) -> Iterator[int]:
        yield sum(1 for _ in inventory.list_all(keys))

    ranges = key_ranges(inventory, _JOB_ID, GROUPS)
    listed = sum(in_parallel(count, ranges, threads=threads))
    return time.monotonic() - began_s, listed
