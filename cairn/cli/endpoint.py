"""An HTTP endpoint that Prometheus scrapes. Whoever asks needs the token, whatever the path."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import make_wsgi_app
from sqlalchemy.exc import DBAPIError

from cairn.catalog.catalog import server_message
from cairn.cli.output import fail, print_error
from cairn.cli.prometheus import to_registry
from cairn.errors import BadInputError, CairnError, MetastoreError

_log = logging.getLogger(__name__)

TOKEN_VARIABLE = "CAIRN_METRICS_TOKEN"  # noqa: S105 - the variable's name
PATH = "/metrics"
_LOCALHOST = "127.0.0.1"
_ADDRESS = re.compile(r"((?P<host>[^\s\[\]:@/]+|\[[0-9a-fA-F:.]+\]):)?(?P<port>[0-9]{1,5})")
_LAST_PORT = 65535
_CLIENT_TIMEOUT_S = 10
_READ_WAIT_S = 10
"""How long a request waits for one before it; Prometheus gives up after 10 s."""
_LONG_WAIT_S = 1.0

ReadRows = Callable[[], Sequence[Mapping[str, Any]]]
"""Reads the rows of `v_metrics`."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 is one that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, given: str) -> Address:
        """Returns the address of `PORT`, on this machine alone, or of `HOST:PORT`.

        Raises:
            BadInputError: it is neither.
        """
        found = _ADDRESS.fullmatch(given)
        if found is None or int(found["port"]) > _LAST_PORT:
            raise BadInputError(f"--serve takes PORT or HOST:PORT, such as 9249; found {given!r}")
        return cls((found["host"] or _LOCALHOST).strip("[]"), int(found["port"]))


class MetricsApp:
    """The endpoint as a WSGI application: `/metrics`, for those who send the token.

    It keeps the token's digest, not the token. One request at a time reads the metastore.
    """

    def __init__(self, read: ReadRows, token: str) -> None:
        self._read = read
        self._digest = hashlib.sha256(token.encode()).digest()
        self._reading = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers one request."""
        if not self._is_allowed(environ.get("HTTP_AUTHORIZATION", "")):
            challenge = ("WWW-Authenticate", 'Bearer realm="cairn metrics"')
            return _reply(start_response, "401 Unauthorized", "the token is missing", challenge)
        # After the token, so that nobody without it learns which paths there are.
        if environ["PATH_INFO"] != PATH:
            return _reply(start_response, "404 Not Found", f"metrics are at {PATH}")
        if environ["REQUEST_METHOD"] != "GET":
            return _reply(start_response, "405 Method Not Allowed", "GET it", ("Allow", "GET"))
        try:
            registry = to_registry(self._rows())
        except CairnError as error:
            fail(error)
        except DBAPIError as error:
            print_error(f"the metastore says: {server_message(error)}")
        else:
            answer: WSGIApplication = make_wsgi_app(registry)
            return answer(environ, start_response)
        # Why is for the log: the message may say where the metastore is.
        return _reply(start_response, "503 Service Unavailable", "the metastore cannot be read")

    def _is_allowed(self, header: str) -> bool:
        scheme, _, given = header.partition(" ")
        # WSGI gives the header's bytes as Latin-1. Digests have one length, whatever was sent.
        digest = hashlib.sha256(given.strip().encode("latin-1")).digest()
        return hmac.compare_digest(digest, self._digest) and scheme.lower() == "bearer"

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        began_s = time.monotonic()
        # One at a time: scrapes that pile up would each hold a connection and read the same.
        if not self._reading.acquire(timeout=_READ_WAIT_S):
            raise MetastoreError(f"another request has read the metrics for {_READ_WAIT_S} s")
        try:
            waited_s = time.monotonic() - began_s
            if waited_s > _LONG_WAIT_S:
                facts = {"waited_s": round(waited_s, 3)}
                _log.warning("waited for another request for the metrics", extra=facts)
            return self._read()
        finally:
            self._reading.release()


def token_of_environment() -> str:
    """Returns the token that requests must have.

    Raises:
        BadInputError: there is none.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise BadInputError(
            f"--serve needs a token that clients must send: set {TOKEN_VARIABLE}, for "
            "instance to the output of `openssl rand -hex 32`"
        )
    return token


def serve(address: Address, app: MetricsApp, *, ready: Callable[[str], None]) -> None:
    """Answers requests until SIGTERM. `ready` is given the URL as soon as it can be asked.

    Raises:
        BadInputError: the address cannot be had.
    """
    try:
        server = _Server(address)
    except OSError as error:
        raise BadInputError(
            f"cannot listen on {address.host}, port {address.port}: {error.strerror or error}"
        ) from error
    with server:
        server.set_app(app)

        def stop(*_: object) -> None:
            # It waits for the loop below, which is in this thread.
            threading.Thread(target=server.shutdown, daemon=True).start()

        before = signal.signal(signal.SIGTERM, stop)
        try:
            host = f"[{address.host}]" if ":" in address.host else address.host
            ready(f"http://{host}:{server.server_port}{PATH}")
            server.serve_forever()
        finally:
            signal.signal(signal.SIGTERM, before)


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_TIMEOUT_S

    def log_message(self, *_: object) -> None:
        """Logs no request: its line may hold a secret."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: Address) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), _Handler)

    def handle_error(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Says nothing of clients that have disconnected or that never asked."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _reply(
    start_response: StartResponse, status: str, text: str, *headers: tuple[str, str]
) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
    return [f"{text}\n".encode()]
