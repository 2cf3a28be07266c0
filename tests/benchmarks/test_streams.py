from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.streams import FileKind, kind_of


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("checkpoint/state/0/1/12.changelog", FileKind.CHANGE),
        ("checkpoint/state/0/_stateSchema/default/0_5c.schema", FileKind.CHANGE),
        ("checkpoint/state/0/1/12.zip", FileKind.SNAPSHOT),
        ("checkpoint/state/0/1/SSTs/000008-04e2.sst", FileKind.SNAPSHOT),
        ("checkpoint/state/0/1/.12.zip.crc", FileKind.CHECKSUM),
        ("storage/job-1/taskmanager-owned/2-58/78.seg", FileKind.CHANGE),
        ("storage/job-1/shared/subtask-0-2/78.seg", FileKind.SNAPSHOT),
        ("storage/job-1/chk-7/_metadata", FileKind.SNAPSHOT),
    ],
)
def test_files_that_come_by_the_clock_are_told_from_changes(path: str, kind: FileKind) -> None:
    assert kind_of(Path(path)) is kind
