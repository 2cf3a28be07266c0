"""Postgres's protocol from the outside: a relay of answers, and a server that refuses."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import URL, make_url

_READY = b"Z"
_IDLE = b"I"


@dataclass
class Relay:
    """A way to a server that `url` names.

    `answers` is how many messages it has answered, and `commits` how many of these answers say that
    no transaction is open any more, so that one of a few statements may have been committed. The
    one that `loses` numbers is not passed on, and its connection is closed.
    """

    url: str
    answers: int = 0
    commits: int = 0
    loses: int | None = None


@dataclass
class Refusing:
    """A server that `url` names; `attempts` is how many have tried to connect."""

    url: str
    attempts: int = 0


@contextmanager
def relay(url: str) -> Iterator[Relay]:
    """Gives a relay to an embedded server."""
    target = make_url(url)
    path = f"{target.query['host']}/.s.PGSQL.{target.query['port']}"

    def serve(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(path)
            upward = threading.Thread(target=_copy, args=(client, server), daemon=True)
            upward.start()
            with suppress(OSError, EOFError):
                client.sendall(_answer(server)[0])
                made.answers += 1
                while True:
                    answer, is_open = _answer(server)
                    made.answers += 1
                    made.commits += not is_open
                    if not is_open and made.commits == made.loses:
                        # Closing alone would not wake the thread that reads from it.
                        client.shutdown(socket.SHUT_RDWR)
                        break
                    client.sendall(answer)

    with _listening(serve) as port:
        # No question about TLS, whose answer is a byte and no message.
        at = target.set(host="127.0.0.1", port=port, query={"sslmode": "disable"})
        made = Relay(at.update_query_dict({"gssencmode": "disable"}).render_as_string(False))
        yield made


@contextmanager
def refusing(message: str, code: str = "08P01") -> Iterator[Refusing]:
    """Gives a server that answers each connection with a FATAL error."""
    fields = f"SFATAL\0VFATAL\0C{code}\0M{message}\0\0".encode()

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            _exactly(client, struct.unpack("!i", _exactly(client, 4))[0] - 4)
            made.attempts += 1
            client.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)

    with _listening(serve) as port:
        at = URL.create("postgresql", "somebody", host="127.0.0.1", port=port, database="cairn")
        plain = at.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
        made = Refusing(plain.render_as_string(False))
        yield made


@contextmanager
def _listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


def _answer(server: socket.socket) -> tuple[bytes, bool]:
    """Returns all that a server answers to one message, and whether a transaction is open then."""
    found = b""
    while True:
        kind, body = _message(server)
        found += kind + struct.pack("!i", len(body) + 4) + body
        if kind == _READY:
            return found, body != _IDLE


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    kind = _exactly(source, 1)
    return kind, _exactly(source, struct.unpack("!i", _exactly(source, 4))[0] - 4)


def _exactly(source: socket.socket, size_bytes: int) -> bytes:
    found = b""
    while len(found) < size_bytes:
        part = source.recv(size_bytes - len(found))
        if not part:
            raise EOFError
        found += part
    return found
