"""A small S3 server in a process of its own, which waits before each request.

moto needs tens of ms for a request with a thousand keys and sorts all keys for each page, so a
benchmark of many objects would measure that. This one has just the verbs that Cairn sends. Objects
that are filled in have no bytes of their own; they read as zeros.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

BUCKET = "bench"
_NS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_LAST = chr(0x10FFFF)
"""Above all that follows a common prefix."""
_AT = "2026-01-01T00:00:00.000Z"
_SET = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_REMOVED = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3")


class StubS3:
    """The server, as the process that measures sees it."""

    def __init__(self, control: Connection) -> None:
        self._control = control

    @property
    def url(self) -> str:
        """The storage URL of the only bucket."""
        return f"s3://{BUCKET}"

    def fill(self, keys: Sequence[str], size_bytes: int) -> None:
        """Adds objects without sending them."""
        self._ask("fill", list(keys), size_bytes)

    def slow_down(self, delay_ms: float) -> None:
        """Makes each request wait so long from now on."""
        self._ask("delay", delay_ms / 1000)

    def counts(self) -> dict[str, int]:
        """Returns how many objects there are, requests there were, and bytes of bodies moved."""
        found: dict[str, int] = self._ask("counts")
        return found

    def _ask(self, *request: object) -> Any:  # noqa: ANN401 - what the request's answer is
        self._control.send(request)
        return self._control.recv()


@contextmanager
def stub_s3() -> Iterator[StubS3]:
    """Yields a server, which is what `AWS_ENDPOINT_URL` names meanwhile."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    before = dict(os.environ)
    try:
        port = ours.recv()
        for name in _REMOVED:
            os.environ.pop(name, None)
        os.environ.update(_SET, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
        yield StubS3(ours)
    finally:
        process.terminate()
        process.join()
        os.environ.clear()
        os.environ.update(before)


class _Objects:
    """Sizes and bytes by key, and the keys in order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.delay_s = 0.0
        self.sizes: dict[str, int] = {}
        self.bodies: dict[str, bytes] = {}
        self.keys: list[str] = []
        self.requests = self.read_bytes = self.written_bytes = 0

    def fill(self, keys: Sequence[str], size_bytes: int) -> None:
        with self.lock:
            self.sizes.update(dict.fromkeys(keys, size_bytes))
            self.keys = sorted(self.sizes)

    def put(self, key: str, body: bytes) -> bool:
        with self.lock:
            if key in self.sizes:
                return False
            self.sizes[key], self.bodies[key] = len(body), body
            insort(self.keys, key)
            return True

    def delete(self, keys: Sequence[str]) -> None:
        with self.lock:
            gone = {key for key in keys if self.sizes.pop(key, None) is not None}
            for key in gone:
                self.bodies.pop(key, None)
            # One by one is quick for few, and all at once for many.
            if len(gone) > 100:
                first = bisect_left(self.keys, min(gone))
                last = bisect_right(self.keys, max(gone))
                self.keys[first:last] = [k for k in self.keys[first:last] if k not in gone]
            else:
                for key in gone:
                    del self.keys[bisect_left(self.keys, key)]

    def page(
        self, prefix: str, after: str, most: int, delimiter: str
    ) -> tuple[list[tuple[str, int | None]], bool]:
        """Returns keys with their sizes, a common prefix without; and whether there are more."""
        found: list[tuple[str, int | None]] = []
        with self.lock:
            at = max(bisect_left(self.keys, prefix), bisect_right(self.keys, after))
            while at < len(self.keys) and self.keys[at].startswith(prefix):
                if len(found) == most:
                    return found, True
                key = self.keys[at]
                end = key.find(delimiter, len(prefix)) if delimiter else -1
                if end < 0:
                    found.append((key, self.sizes[key]))
                    at += 1
                else:
                    # What follows starts so, too, and is skipped, as after such a token.
                    found.append((key[: end + 1] + _LAST, None))
                    at = bisect_right(self.keys, found[-1][0], at)
        return found, False


def _serve(control: Connection) -> None:
    objects = _Objects()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_H", (_Handler,), {"objects": objects}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    control.send(server.server_address[1])
    while True:
        what, *given = control.recv()
        answer: object = None
        if what == "fill":
            objects.fill(*given)
        elif what == "delay":
            [objects.delay_s] = given
        else:
            answer = {
                "objects": len(objects.sizes),
                "requests": objects.requests,
                "read_bytes": objects.read_bytes,
                "written_bytes": objects.written_bytes,
            }
        control.send(answer)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # The headers and the body of an answer leave in one packet.
    wbufsize = -1
    disable_nagle_algorithm = True
    objects: _Objects

    def log_message(self, *_: object) -> None:
        """Stays silent."""

    def _begin(self) -> tuple[str, dict[str, str], bytes]:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.objects.delay_s:
            time.sleep(self.objects.delay_s)
        self.objects.requests += 1
        split = urlsplit(self.path)
        key = unquote(split.path).partition("/")[2].partition("/")[2]
        asked = parse_qs(split.query, keep_blank_values=True)
        return key, {name: values[0] for name, values in asked.items()}, body

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _error(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def do_GET(self) -> None:
        key, asked, _ = self._begin()
        if not key:
            return self._list(asked)
        size = self.objects.sizes.get(key)
        if size is None:
            return self._error(404, "NoSuchKey")
        start, end = 0, size
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start = int(match[1])
            end = min(size, int(match[2]) + 1) if match[2] else size
            if start >= size:
                return self._error(416, "InvalidRange")
        body = self.objects.bodies.get(key)
        data = bytes(end - start) if body is None else body[start:end]
        self.objects.read_bytes += len(data)
        return self._answer(206, data, Content_Range=f"bytes {start}-{end - 1}/{size}")

    def do_HEAD(self) -> None:
        key, _, _ = self._begin()
        size = self.objects.sizes.get(key)
        if size is None:
            return self._answer(404)
        return self._answer(200, Content_Length=str(size))

    def do_PUT(self) -> None:
        key, _, body = self._begin()
        if key and not self.objects.put(key, body):
            return self._error(412, "PreconditionFailed")
        self.objects.written_bytes += len(body)
        return self._answer(200, ETag='"0"')

    def do_DELETE(self) -> None:
        key, _, _ = self._begin()
        self.objects.delete([key])
        self._answer(204)

    def do_POST(self) -> None:
        _, _, body = self._begin()
        keys = [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", body.decode())]
        self.objects.delete(keys)
        gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult {_NS}>{gone}</DeleteResult>".encode())

    def _list(self, asked: dict[str, str]) -> None:
        prefix, most = asked.get("prefix", ""), int(asked.get("max-keys", "1000"))
        after = asked.get("continuation-token") or asked.get("start-after", "")
        delimiter = asked.get("delimiter", "")
        found, has_more = self.objects.page(prefix, after, min(most, 1000), delimiter)
        entries = "".join(
            f"<CommonPrefixes><Prefix>{escape(key.removesuffix(_LAST))}</Prefix></CommonPrefixes>"
            if size is None
            else f"<Contents><Key>{escape(key)}</Key><LastModified>{_AT}</LastModified>"
            f"<ETag>&quot;0&quot;</ETag><Size>{size}</Size></Contents>"
            for key, size in found
        )
        token = (
            f"<NextContinuationToken>{escape(found[-1][0])}</NextContinuationToken>"
            if has_more
            else ""
        )
        self._answer(
            200,
            f"<ListBucketResult {_NS}><KeyCount>{len(found)}</KeyCount>"
            f"<IsTruncated>{str(has_more).lower()}</IsTruncated>{token}{entries}"
            "</ListBucketResult>".encode(),
        )
