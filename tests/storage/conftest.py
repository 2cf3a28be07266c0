from __future__ import annotations

import functools
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

REAL_S3 = "CAIRN_TEST_S3_ENDPOINT"


class Exchange(BaseHTTPRequestHandler):
    """One request on its way through the proxy."""

    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _handle(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(f"{self.command} {self.path}")
        self.server.client_ports.append(self.client_address[1])
        faults = self.server.faults.get(self.command, [])
        fault = faults.pop(0) if faults else Exchange.pass_on
        fault(self)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def forward(self) -> tuple[int, dict[str, str], bytes]:
        """Returns what the S3 server answers to the request as it is now."""
        upstream = HTTPConnection(*self.server.upstream, timeout=20)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("expect", "connection"):
                upstream.putheader(name, value)
        upstream.endheaders(self.body)
        answer = upstream.getresponse()
        body = answer.read()
        headers = dict(answer.headers)
        upstream.close()
        return answer.status, headers, body

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        hop = ("connection", "transfer-encoding", "server", "date")
        for name, value in headers.items():
            if name.lower() not in hop:
                self.send_header(name, value)
        if "content-length" not in {name.lower() for name in headers}:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def pass_on(self) -> None:
        self.answer(*self.forward())

    def hang_up(self) -> None:
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Stays silent."""


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on to an S3 server, the next ones of a method with a fault each."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        at = urlsplit(upstream)
        assert at.hostname is not None
        self.upstream = (at.hostname, at.port or 80)
        self.requests: list[str] = []
        self.client_ports: list[int] = []
        self.faults: dict[str, list[Callable[[Exchange], None]]] = {}

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def moto_url(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "moto-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "moto-secret-8c1d")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    yield from _bucket(moto_endpoint)


@pytest.fixture
def server_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new bucket on the real S3 server, with the credentials of the environment."""
    endpoint = os.environ.get(REAL_S3)
    if endpoint is None:
        pytest.skip(f"{REAL_S3} names no S3 server")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    yield from _bucket(endpoint)


@pytest.fixture(params=["moto", "server"])
def s3_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["posix", "moto", "server"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "posix":
        (tmp_path / "store").mkdir()
        return str(tmp_path / "store")
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def proxy(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy before the S3 server of `s3_url`; stores opened from now on go through it."""
    with FaultyProxy(os.environ["AWS_ENDPOINT_URL"]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        yield server
        server.shutdown()
        thread.join()


def _bucket(endpoint: str) -> Iterator[str]:
    bucket = f"cairn-test-{secrets.token_hex(6)}"
    client = _client(endpoint)
    client.create_bucket(Bucket=bucket)
    yield f"s3://{bucket}/some/prefix"
    while found := client.list_objects_v2(Bucket=bucket).get("Contents"):
        keys = [{"Key": entry["Key"]} for entry in found]
        client.delete_objects(Bucket=bucket, Delete={"Objects": keys})  # type: ignore[typeddict-item]
    client.delete_bucket(Bucket=bucket)


@functools.cache
def _client(endpoint: str) -> S3Client:
    """Returns a client that is made once, which takes 0.1 s."""
    config = Config(s3={"addressing_style": "path"})
    return boto3.Session().client("s3", endpoint_url=endpoint, config=config)
