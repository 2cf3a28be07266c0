"""`make bench-maintenance` measures planning and deleting, on a server that does what S3 does."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import maintenance
from benchmarks.maintenance_shape import QUICK
from benchmarks.stub_s3 import stub_s3
from cairn.errors import RefusedError, StorageError
from cairn.storage import open_store


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not pytest's own, which no other user may enter: root runs PostgreSQL as `pgserver`."""
    made = Path(tempfile.mkdtemp(prefix="cairn-test-"))
    yield made
    shutil.rmtree(made)


@pytest.mark.slow
def test_a_quick_run_measures_plans_and_deletes(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = maintenance.main(["--quick", "--json", "--output", str(directory)])
    assert code == 0, capsys.readouterr().err
    measured = json.loads(capsys.readouterr().out)
    assert measured == json.loads((directory / "maintenance.json").read_text())
    values = {f"{one['workload']} {one['name']}": one["value"] for one in measured["figures"]}
    for live in QUICK.live_segments:
        planned = values[f"planning {live:,} live segments: files planned"]
        assert planned == QUICK.dead_batches * QUICK.groups
        assert values[f"planning {live:,} live segments: plan"] > 0
    assert values["planning most over fewest"] > 0
    assert values[f"deletes {QUICK.deleted_files:,} files"] > 0
    # Two of deletes, and those that ask who owns the root.
    assert values["deletes requests"] < 20
    assert list(directory.iterdir()) == [directory / "maintenance.json"]


def test_the_stub_of_s3_does_what_the_store_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with stub_s3() as s3:
        store = open_store(f"{s3.url}/a")
        store.check_writable()
        store.put("one/b&<1>", [b"0123456789"])
        with pytest.raises(RefusedError):
            store.put("one/b&<1>", [b"again"])
        assert store.get("one/b&<1>", 2, 3) == b"234"
        with pytest.raises(StorageError):
            store.get("one/b&<1>", 8, 3)
        with pytest.raises(StorageError, match="no such object"):
            store.get("two")
        keys = [f"many/{number:05}" for number in range(2_500)]
        s3.fill([f"a/{key}" for key in keys], 7)
        assert [found.path for found in store.list("many/")] == keys
        assert [found.path for found in store.list("one/")] == ["one/b&<1>"]
        assert {found.size_bytes for found in store.list("many/0")} == {7}
        assert store.get("many/00000") == bytes(7)
        assert store.delete_many(["one/b&<1>", "nobody", *keys[::2]]) == {}
        assert [found.path for found in store.list("")] == keys[1::2]
        counts = s3.counts()
        assert counts["objects"] == 1_250
        assert counts["requests"] > 10
