"""A proxy in a process of its own that keeps each request to a server waiting."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

_PIECE_BYTES = 1 << 20
_INTERIM = b"HTTP/1.1 100"
"""How an answer begins that asks for the rest of the request."""


@contextmanager
def slow_proxy(upstream: str, delay_ms: float) -> Iterator[str]:
    """Yields the URL of a proxy to an HTTP server, which passes bytes on as they are."""
    at = urlsplit(upstream)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, (at.hostname, at.port), delay_ms / 1000), daemon=True
    )
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def _serve(control: Connection, upstream: tuple[str, int], delay_s: float) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        control.send(server.getsockname()[1])
        while True:
            client, _ = server.accept()
            threading.Thread(target=_Exchange(client, upstream, delay_s).run, daemon=True).start()


class _Exchange:
    """One connection of a client, with the one to the server that it has."""

    def __init__(self, client: socket.socket, upstream: tuple[str, int], delay_s: float) -> None:
        self._client, self._delay_s = client, delay_s
        self._server = socket.create_connection(upstream)
        for one in (client, self._server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_answered = True

    def run(self) -> None:
        answers = threading.Thread(target=self._pass_answers, daemon=True)
        answers.start()
        with self._server, suppress(OSError):
            while piece := self._client.recv(_PIECE_BYTES):
                # What comes after an answer is the next request; nobody sends two at once.
                if self._is_answered:
                    time.sleep(self._delay_s)
                    self._is_answered = False
                self._server.sendall(piece)
            self._server.shutdown(socket.SHUT_WR)
            answers.join()

    def _pass_answers(self) -> None:
        with self._client, suppress(OSError):
            while piece := self._server.recv(_PIECE_BYTES):
                if not piece.startswith(_INTERIM):
                    self._is_answered = True
                self._client.sendall(piece)
