"""`cairn metrics`: its text is Prometheus's, its JSON the view's, and its endpoint is guarded."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text, update

from cairn.catalog.metrics import METRICS, MetricKind
from cairn.cli import main
from cairn.cli.endpoint import TOKEN_VARIABLE, Address, MetricsApp
from cairn.errors import BadInputError
from metastore.models import Job
from tests.cli.conftest import Outcome
from tests.cli.stateful_job import StatefulJob, put_count
from tests.metastore.rows import Rows

Cairn = Callable[..., Outcome]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
ROOT = Path(__file__).parents[2]
TOKEN = "a token that is known to Prometheus"  # noqa: S105


@pytest.fixture
def rows(metastore_url: str) -> Rows:
    """A job in its first run that has a value of every metric."""
    made = Rows(metastore_url, name='cl"icks')
    made.job()
    made.execute(update(Job).values(current_epoch=1, next_checkpoint_id=3))
    made.segment(made.file(size_bytes=1000), 400)
    made.checkpoint(2, "COMPLETED")
    made.ack(2, 0, input_rows=1)
    made.upload(2, size_bytes=300, tm_id="1-ab")
    made.upload(2, size_bytes=100, tm_id="1-ab")
    for kind in ("keyed_full", "keyed_increment"):
        made.materialization(1, kind=kind, finished_at=text("now()"), size_bytes=50)
    made.execute(
        text("INSERT INTO cairn.good_runs (job_id, action) SELECT job_id, 'scrub' FROM cairn.jobs")
    )
    return made


def samples(exposition: str) -> Samples:
    """Returns the values by name and labels, as Prometheus's own parser reads them."""
    found: Samples = {}
    for family in text_string_to_metric_families(exposition):
        assert family.type != "unknown", f"{family.name} has no type of its own"
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, key
            found[key] = sample.value
    return found


def labelled(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset({"job": 'cl"icks', **labels}.items())


def test_the_text_has_every_metric_by_the_documented_rule(cairn: Cairn, rows: Rows) -> None:
    outcome = cairn("metrics")
    assert (outcome.code, outcome.err) == (0, "")
    found = samples(outcome.out)
    for metric in METRICS:
        name = (
            "cairn_"
            + metric.name.replace(".", "_")
            + ("_total" if metric.kind is MetricKind.COUNTER else "")
        )
        assert any(sample == name for sample, _ in found), name
    assert found[labelled("cairn_fileMerging_physicalFileSize")] == 1000
    assert found[labelled("cairn_Storage_spaceAmplification")] == 2.5
    requests = "cairn_ChangelogStorage_numberOfUploadRequests_total"
    assert found[labelled(requests, tm="1-ab")] == 2
    sizes = "cairn_ChangelogStorage_uploadSizes"
    assert found[labelled(sizes, tm="1-ab", quantile="0.5")] == 200
    assert found[labelled(sizes, tm="1-ab", quantile="0.999")] == pytest.approx(299.8)
    assert found[labelled(f"{sizes}_sum", tm="1-ab")] == 400
    assert found[labelled(f"{sizes}_count", tm="1-ab")] == 2
    assert found[labelled("cairn_Storage_rewriteBytes_total", subtask="1")] == 100
    since = labelled("cairn_Maintenance_secondsSinceLastGoodRun", action="scrub")
    assert 0 <= found[since] < 3600


def test_the_text_has_one_sample_for_each_row_of_the_view(cairn: Cairn, rows: Rows) -> None:
    listed = cairn("metrics", "--json").json
    found = samples(cairn("metrics").out)
    assert len(found) == len(listed) > len(METRICS)
    # Time goes on between the two.
    since = "Maintenance.secondsSinceLastGoodRun"
    del found[labelled("cairn_Maintenance_secondsSinceLastGoodRun", action="scrub")]
    values = sorted(row["value"] for row in listed if row["metric"] != since)
    assert sorted(found.values()) == values


def test_metrics_of_one_job_are_its_own(cairn: Cairn, rows: Rows, job: StatefulJob) -> None:
    job.batch(put_count(1, "eu", 1))
    jobs = {row["job_name"] for row in cairn("metrics", "--json").json}
    assert jobs == {'cl"icks', "clicks"}
    assert {row["job_name"] for row in cairn("metrics", "clicks", "--json").json} == {"clicks"}
    assert {dict(labels)["job"] for _, labels in samples(cairn("metrics", "clicks").out)} == {
        "clicks"
    }
    outcome = cairn("metrics", "clikcs")
    assert (outcome.code, outcome.out) == (2, "")


def test_the_table_shows_whole_numbers_and_every_digit_of_a_quantile(
    cairn: Cairn, rows: Rows
) -> None:
    lines = {" ".join(line.split()) for line in cairn("metrics", "--table").out.splitlines()}
    assert 'cl"icks fileMerging.physicalFileSize gauge 1000' in lines
    assert 'cl"icks Storage.spaceAmplification gauge 2.50' in lines
    assert 'cl"icks ChangelogStorage.uploadSizes 1-ab quantile 0.999 299.80' in lines


@dataclass(frozen=True)
class Endpoint:
    process: subprocess.Popen[str]
    port: int

    def ask(
        self, token: str | None = TOKEN, path: str = "/metrics", method: str = "GET", **more: str
    ) -> tuple[HTTPResponse, str]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, headers={**headers, **more})
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        return response, body

    def stop(self) -> str:
        """Ends it with SIGTERM; returns what it has said meanwhile."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=20)
        return said


@contextmanager
def serving(url: str, *arguments: str, token: str = TOKEN) -> Iterator[Endpoint]:
    process = subprocess.Popen(
        [sys.executable, "-m", "cairn.cli", "metrics", "--serve", "0", *arguments],
        cwd=ROOT,
        env={"CAIRN_METASTORE": url, TOKEN_VARIABLE: token},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith("serving http://127.0.0.1:"), said + process.stderr.read()
        yield Endpoint(process, int(said.removesuffix("/metrics\n").rpartition(":")[2]))
    finally:
        process.kill()
        process.communicate()


def test_the_endpoint_answers_whoever_sends_the_token_and_ends_at_sigterm(rows: Rows) -> None:
    with serving(rows.url) as endpoint:
        response, body = endpoint.ask()
        assert (response.status, response.headers["Content-Type"]) == (
            200,
            "text/plain; version=0.0.4; charset=utf-8",
        )
        assert samples(body)[labelled("cairn_fileMerging_logicalFileSize")] == 400
        rows.segment(rows.file(), 50)
        _, body = endpoint.ask()
        assert samples(body)[labelled("cairn_fileMerging_logicalFileSize")] == 450
        _, body = endpoint.ask(Accept="application/openmetrics-text; version=1.0.0")
        assert body.endswith("# EOF\n")
        assert endpoint.stop() == ""
        assert endpoint.process.returncode == 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer another token"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": "Bearer"},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}, Bearer {TOKEN}"},
        {"Authorization": "Bearer \xff"},
    ],
)
@pytest.mark.parametrize("path", ["/metrics", "/", "/favicon.ico"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_nobody_is_answered_without_the_token(
    headers: Mapping[str, str], path: str, method: str
) -> None:
    status, body, told = answer(guarded(), path, method, headers)
    assert (status, told["WWW-Authenticate"]) == (401, 'Bearer realm="cairn metrics"')
    assert "cairn_" not in body


@pytest.mark.parametrize(
    ("path", "method", "expected"),
    [("/", "GET", 404), ("/favicon.ico", "GET", 404), ("/metrics", "POST", 405)],
)
def test_there_is_one_path_and_it_is_only_read(path: str, method: str, expected: int) -> None:
    status, _, _ = answer(guarded(), path, method, {"Authorization": f"bearer {TOKEN}"})
    assert status == expected


def guarded() -> MetricsApp:
    def read() -> list[Mapping[str, Any]]:
        raise AssertionError("the metastore was read")

    return MetricsApp(read, TOKEN)


def answer(
    app: MetricsApp, path: str, method: str, headers: Mapping[str, str]
) -> tuple[int, str, dict[str, str]]:
    """Returns status, body and headers that the application gives."""
    told: dict[str, Any] = {}

    def start_response(status: str, given: list[tuple[str, str]], *_: Any) -> Any:
        told["status"], told["headers"] = int(status.split(maxsplit=1)[0]), dict(given)

    environ = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    body = app({"PATH_INFO": path, "REQUEST_METHOD": method, **environ}, start_response)
    return told["status"], b"".join(body).decode(), told["headers"]


def test_the_token_is_in_no_representation_and_no_output(rows: Rows) -> None:
    app = guarded()
    assert TOKEN not in repr(app) + repr(vars(app))
    with serving(rows.url) as endpoint:
        endpoint.ask("wrong")
        endpoint.ask(path=f"/metrics?token={TOKEN.replace(' ', '+')}")
        assert endpoint.stop() == ""


def test_a_metastore_that_cannot_be_read_is_a_503_without_its_address(rows: Rows) -> None:
    with serving(rows.url) as endpoint:
        change = text("UPDATE cairn.alembic_version SET version_num = '9999'")
        rows.catalog.run("changing the revision", lambda c: c.execute(change))
        response, body = endpoint.ask()
        assert (response.status, body) == (503, "the metastore cannot be read\n")
        said = endpoint.stop()
        assert said.startswith("error: ")
        assert "9999" in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("token", [None, "", "  "])
def test_it_refuses_to_serve_without_a_token(
    cairn: Cairn, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    if token is not None:
        monkeypatch.setenv(TOKEN_VARIABLE, token)
    outcome = cairn("metrics", "--serve", "0")
    assert (outcome.code, outcome.out) == (2, "")
    assert f"set {TOKEN_VARIABLE}" in outcome.err


def test_what_is_wrong_is_said_before_it_serves(
    cairn: Cairn, monkeypatch: pytest.MonkeyPatch, empty_database_url: str
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert "no job 'clikcs'" in cairn("metrics", "clikcs", "--serve", "0").err
    assert main(["metrics", "--serve", "0", "--metastore", empty_database_url]) == 4
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = cairn("metrics", "--serve", str(taken.getsockname()[1]))
    assert (outcome.code, outcome.out) == (2, "")
    assert "cannot listen on 127.0.0.1, port " in outcome.err
    assert "one of --json, --table and --serve" in cairn("metrics", "--serve", "0", "--json").err


@pytest.mark.parametrize(
    ("given", "host", "port"),
    [
        ("9249", "127.0.0.1", 9249),
        ("0.0.0.0:9249", "0.0.0.0", 9249),  # noqa: S104
        ("monitoring:1", "monitoring", 1),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_an_address_is_a_port_here_or_a_host_and_a_port(given: str, host: str, port: int) -> None:
    assert Address.parse(given) == Address(host, port)


@pytest.mark.parametrize(
    "given",
    ["", ":9249", "host", "host:", "host:65536", "u@host:1", "host:1/metrics", "::1:9", "٣"],
)
def test_any_other_address_is_refused(given: str) -> None:
    with pytest.raises(BadInputError, match="--serve takes PORT or HOST:PORT"):
        Address.parse(given)
