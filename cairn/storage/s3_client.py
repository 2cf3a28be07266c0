"""The S3 client of a process, and how long its requests take."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from cairn.errors import BadInputError
from cairn.storage.s3_listing import read_quickly

if TYPE_CHECKING:
    from botocore.config import _RetryDict
    from mypy_boto3_s3 import S3Client

# A try connects within 5 s, sends within 30 s (of a send, a socket's timeout is its whole time) and
# is answered within 30 s; boto3's three tries, and up to 20 s between them, keep LONGEST_WRITE_S.
_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 30
LONGEST_TRY_S = _CONNECT_TIMEOUT_S + 2 * _READ_TIMEOUT_S


def client_of(pid: int, endpoint: str | None, tries: int | None) -> S3Client:
    """Returns this process's client; `pid` keeps a forked worker off its parent's sockets.

    `tries` is how often a request is sent; None: as boto3's own configuration says.
    """
    with _lock_of(pid):
        return _made(pid, endpoint, tries)


@functools.cache
def _lock_of(_: int) -> threading.Lock:
    """Returns the lock of a process: a forked one must not wait for its parent's threads."""
    return threading.Lock()


@functools.cache
def _session_of(_: int, __: str | None) -> boto3.Session:
    """Returns the session of a process: a second client does not read what S3 is again."""
    return boto3.Session()


@functools.cache
def _made(pid: int, endpoint: str | None, tries: int | None) -> S3Client:
    often: _RetryDict = {"mode": "standard"}
    if tries is not None:
        often["total_max_attempts"] = tries
    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries=often,
        # As many as a sweep lists at once.
        max_pool_connections=16,
        s3={"addressing_style": "path"} if endpoint else None,
    )
    try:
        client = _session_of(pid, endpoint).client("s3", config=config)
        read_quickly(client.meta.events)
    except ValueError:  # its text repeats the URL, which may hold a password
        raise BadInputError(
            "boto3 cannot make an S3 client: AWS_ENDPOINT_URL must be http(s)://host:port and "
            "AWS_MAX_ATTEMPTS a number"
        ) from None
    # It would be in every error's text, with the password.
    if urlsplit(client.meta.endpoint_url).username is not None:
        raise BadInputError(
            "AWS_ENDPOINT_URL carries a user name; S3 does not use it. Remove it from the URL and "
            "give credentials by boto3's own chain"
        )
    return client
