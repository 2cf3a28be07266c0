"""The store in which bytes are copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.maintenance_shape import Place
from benchmarks.real_s3 import real_s3
from benchmarks.slow_s3 import SlowS3


@contextmanager
def copying_store(place: Place) -> Iterator[str]:
    """Yields the URL of a bucket on a real S3 server; for a quick run, on one in this process.

    Raises:
        BadInputError: there is no real server here.
    """
    if place.is_quick:
        with SlowS3() as slow:
            slow.delay_ms = int(place.sizes.delay_ms)
            yield slow.url
    else:
        with real_s3(place.directory, place.sizes.delay_ms) as url:
            yield url
