"""`make bench-maintenance` measures what the maintenance does, on servers that do what S3 does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks import maintenance
from benchmarks.maintenance_shape import QUICK
from benchmarks.session import ROOT
from benchmarks.slow_proxy import slow_proxy
from benchmarks.stub_s3 import stub_s3
from cairn.errors import RefusedError, StorageError
from cairn.storage import inventory_of, open_store


@pytest.mark.spark
def test_a_quick_run_measures_a_stream_with_maintenance_beside_it(directory: Path) -> None:
    """In a process: it stops its Spark session at the end, which here would be every test's."""
    command = ("benchmarks.maintenance", "--quick", "--json", "--workload", "stream")
    done = subprocess.run(
        [sys.executable, "-m", *command, "--output", str(directory)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values = {one["name"]: one["value"] for one in json.loads(done.stdout)["figures"]}
    assert values["beside over without, of a round"] > 0
    assert values["executors' CPU a batch, by stream"] > 0
    assert values["executors' CPU a batch, by maintenance"] > 0


class _Answers(BaseHTTPRequestHandler):
    """Answers with what it was sent."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Stays silent."""

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_the_slow_proxy_delays_each_request_once_and_changes_no_byte() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with slow_proxy(f"http://127.0.0.1:{server.server_port}", 100) as url:
            connection = HTTPConnection(urlsplit(url).netloc)
            took_s = []
            for body in (b"x", os.urandom(3 << 20), b""):
                began_s = time.monotonic()
                connection.request("PUT", "/", body)
                assert connection.getresponse().read() == body
                took_s.append(time.monotonic() - began_s)
            connection.close()
        server.shutdown()
    assert min(took_s) > 0.1
    assert sum(took_s) < 10


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not pytest's own, which no other user may enter: root runs PostgreSQL as `pgserver`."""
    made = Path(tempfile.mkdtemp(prefix="cairn-test-"))
    yield made
    shutil.rmtree(made)


@pytest.mark.slow
def test_a_quick_run_measures_all_that_needs_no_stream(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workloads = [name for name in maintenance.WORKLOADS if name != "stream"]
    code = maintenance.main(
        ["--quick", "--json", "--output", str(directory), "--workload", *workloads]
    )
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
    assert values["listing 16 threads over one"] > 0
    # One live base in four: as many bytes are read, and written, as a third of those freed.
    assert values["compaction bytes read and written for a byte freed"] == pytest.approx(2 / 3)
    assert 0 < values["compaction 10 MB: longest transaction"] < 10_000
    assert values["fold 2,000 entries of 100 bytes: CPU over the stream's own"] > 0
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
        assert inventory_of(store).directories("many") == []
        s3.fill([f"a/many/{number:04}/b" for number in range(1_200)], 7)
        below = inventory_of(store).directories("many")
        assert below == [f"many/{number:04}" for number in range(1_200)]
        assert store.delete_many([f"{one}/b" for one in below]) == {}
        assert store.delete_many(["one/b&<1>", "nobody", *keys[::2]]) == {}
        assert [found.path for found in store.list("")] == keys[1::2]
        counts = s3.counts()
        assert counts["objects"] == 1_250
        assert counts["requests"] > 10
