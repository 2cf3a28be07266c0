from __future__ import annotations

import os
import time

from benchmarks.slow_s3 import SlowS3
from cairn.storage import open_store


def test_each_request_is_counted_and_waits() -> None:
    with SlowS3() as s3:
        store = open_store(s3.url)
        store.put("a/b", [b"first"])
        before = len(s3.arrived_s)
        s3.delay_ms = 120
        began = time.monotonic()
        store.put("a/c", [b"second"])
        assert store.get("a/c") == b"second"
        assert time.monotonic() - began >= 0.24
        assert len(s3.arrived_s) - before == 2


def test_the_environment_is_as_before_afterwards() -> None:
    before = dict(os.environ)
    with SlowS3():
        assert dict(os.environ) != before
    assert dict(os.environ) == before
