"""`make bench-metastore` runs every workload on both versions, and compares what it measures."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import metastore
from benchmarks.metastore_calls import CatalogCalls
from benchmarks.metastore_figures import AFTER, BEFORE, Measured, rows
from benchmarks.metastore_shape import MAX_PARALLELISM, QUICK, Batch, History, share
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.materializations import replay_of
from cairn.keygroups import range_of


def has_the_commit() -> bool:
    found = subprocess.run(
        ["git", "cat-file", "-e", f"{metastore.AGAINST}^{{commit}}"],
        cwd=metastore.ROOT,
        capture_output=True,
        check=False,
    )
    return found.returncode == 0


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not pytest's own, which no other user may enter: root runs PostgreSQL as `pgserver`."""
    made = Path(tempfile.mkdtemp(prefix="cairn-test-"))
    yield made
    shutil.rmtree(made)


@pytest.mark.slow
@pytest.mark.skipif(not has_the_commit(), reason="the code before is in the full history only")
def test_a_quick_run_measures_every_workload_before_and_after(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = metastore.main(["--quick", "--json", "--output", str(directory)])
    assert code == 0, capsys.readouterr().err
    measured = json.loads(capsys.readouterr().out)
    assert measured == json.loads((directory / "metastore.json").read_text())
    values = {name: of["values"] for name, of in measured["workloads"].items()}
    assert list(values) == ["contention", "many-jobs", "live", "growth"]
    for name, sides in values.items():
        assert sides[BEFORE].keys() == sides[AFTER].keys(), name
    assert values["contention"][AFTER].keys() == {"1 executor", "3 executors"}
    for side in (BEFORE, AFTER):
        [few, many] = values["contention"][side].values()
        assert "other begins p50 ms" not in few
        assert few["batches/s"][0] > 0
        assert many["other begins p50 ms"][0] > 0
        [jobs] = values["many-jobs"][side].values()
        assert 0 < jobs["batches/s"][0] <= QUICK.jobs
        [*_, dead] = values["live"][side].values()
        assert dead["install of a base ms"][0] > 0
        assert dead["v_metrics ms"][0] > 0
    [cleaned, group] = values["growth"][BEFORE].values()
    assert cleaned["checkpoints rows"] == [1]
    # As many files are deleted in a cycle as are made in one: its bases too, by the next one.
    assert cleaned["deletions rows"] == cleaned["physical_files rows"] > [2]
    assert group["segments rows"] == [12]
    assert list(directory.iterdir()) == [directory / "metastore.json"]


def test_a_commit_that_is_not_there_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert metastore.main(["--against", "0" * 40, "--output", str(tmp_path)]) == 1
    assert "no code of 0000" in capsys.readouterr().err


def test_a_factor_says_how_many_times_better_the_later_version_is() -> None:
    measured = Measured("a commit", 0.0)
    for before_ms, after_ms in ((30, 10), (40, 10)):
        measured.add("w", BEFORE, {"p": {"ack ms": before_ms, "batches/s": 2, "intent ms": 1}})
        measured.add("w", AFTER, {"p": {"ack ms": after_ms, "batches/s": 5}})
    found = {row.name: row for row in rows(measured, "w")}
    ack, rate, intent = (found[name].factor for name in ("ack ms", "batches/s", "intent ms"))
    assert ack is not None
    assert (ack.median, ack.lowest, ack.highest) == (3.5, 3, 4)
    assert rate is not None
    assert rate.median == 2.5
    assert intent is None
    assert found["intent ms"].after is None


def test_a_history_made_by_sql_is_as_if_its_batches_had_been_committed(
    metastore_url: str, tmp_storage: str
) -> None:
    """The metastore's benchmark measures the rows that a job has, and no others."""
    parallelism, groups, subtask = 7, 3, 4
    history = History(dead_batches=4, live_batches=3, groups=groups)
    calls, catalog = CatalogCalls(metastore_url), Catalog(metastore_url)
    job = calls.register("filled", parallelism, tmp_storage)
    calls.fill(job, history)
    batch = Batch(job, history.batches)
    checkpoint_id = calls.begin(batch, range(parallelism))
    for executor in range(groups):
        calls.commit_group(batch, checkpoint_id, executor, share(parallelism, groups, executor))
    key_groups = range_of(subtask, parallelism, MAX_PARALLELISM)
    replay = catalog.run("x", lambda c: replay_of(c, job.job_id, checkpoint_id, key_groups))
    assert replay.is_based
    assert [base.as_of_checkpoint for base in replay.bases] == [history.dead_batches]
    *filled, committed = replay.changes
    assert [change.first_checkpoint for change in filled] == [5, 6, 7]
    assert {(c.kind, c.offset, c.size_bytes, c.key_groups, c.entries) for c in filled} == {
        (
            committed.kind,
            committed.offset,
            committed.size_bytes,
            committed.key_groups,
            committed.entries,
        )
    }
    assert {len(c.sha256) for c in filled} == {len(committed.sha256)}
    calls.install_base(batch, subtask, checkpoint_id - 1)
    left = catalog.run("x", lambda c: replay_of(c, job.job_id, checkpoint_id, key_groups))
    assert [base.as_of_checkpoint for base in left.bases] == [history.batches]
    assert left.changes == [committed]
