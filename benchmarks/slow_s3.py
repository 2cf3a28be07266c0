"""An S3 server in this process that counts its requests and waits before each."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import boto3
from botocore.config import Config
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

_BUCKET = "bench"
_SET = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_REMOVED = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3")


class SlowS3:
    """Serves while it is entered, and is then what `AWS_ENDPOINT_URL` names.

    Enter it before Spark starts, whose workers inherit the environment.

    Attributes:
        delay_ms: how long each request waits.
        arrived_s: when each came, in seconds since the epoch.
        gates: what the next writes wait for, one each, before their bytes land.
    """

    def __init__(self) -> None:
        self.delay_ms = 0
        self.arrived_s: list[float] = []
        self.gates: list[threading.Event] = []
        self._environment: dict[str, str] = {}
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet
        )

    @property
    def url(self) -> str:
        """The storage URL of the only bucket."""
        return f"s3://{_BUCKET}"

    def __enter__(self) -> SlowS3:
        # Asked often whether to stop: tests start and stop one each.
        serve = self._server.serve_forever
        threading.Thread(target=serve, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self._environment = dict(os.environ)
        for name in _REMOVED:
            os.environ.pop(name, None)
        os.environ.update(_SET, AWS_ENDPOINT_URL=f"http://127.0.0.1:{self._server.port}")
        self._client = boto3.Session().client("s3", config=Config(s3={"addressing_style": "path"}))
        self._client.create_bucket(Bucket=_BUCKET)
        return self

    def empty(self) -> None:
        """Removes all objects and unfinished uploads."""
        bucket: Any = {"Bucket": _BUCKET}
        while found := self._client.list_objects_v2(**bucket).get("Contents"):
            keys: Any = {"Objects": [{"Key": one["Key"]} for one in found], "Quiet": True}
            self._client.delete_objects(**bucket, Delete=keys)
        for one in self._client.list_multipart_uploads(**bucket).get("Uploads", []):
            which: Any = {"Key": one["Key"], "UploadId": one["UploadId"]}
            self._client.abort_multipart_upload(**bucket, **which)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()
        self._server.shutdown()
        self._server.server_close()
        os.environ.clear()
        os.environ.update(self._environment)

    def _answer(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        self.arrived_s.append(time.time())
        time.sleep(self.delay_ms / 1000)
        if environ["REQUEST_METHOD"] == "PUT" and self.gates:
            self.gates.pop(0).wait()
        answer: Iterable[bytes] = self._moto(environ, start_response)
        return answer


class _Quiet(WSGIRequestHandler):
    """Keeps connections open, as S3 does, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Stays silent."""
