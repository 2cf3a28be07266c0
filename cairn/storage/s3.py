"""An object store in an S3 bucket."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigParseError,
    EndpointProviderError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)

from cairn.errors import BadInputError, StorageError
from cairn.storage.chunks import ChunkReader
from cairn.storage.store import (
    StoredObject,
    check_by_probe,
    check_path,
    check_prefix,
    check_range,
    exists_error,
    missing_error,
    short_read_error,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_log = logging.getLogger(__name__)

# A try connects within 5 s, sends within 30 s (of a send, a socket's timeout is its whole time) and
# is answered within 30 s; boto3's three tries, and up to 20 s between them, keep LONGEST_WRITE_S.
_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 30
_DELETES_PER_REQUEST = 1000
_LARGEST_PUT_BYTES = 5 << 30
_JOINED_BYTES = 8 << 20

_CREDENTIALS = "check the credentials that boto3 finds (environment, profile or role)"
_PERMISSIONS = "allow s3:PutObject, s3:GetObject, s3:ListBucket and s3:DeleteObject there"
_ENDPOINT = "correct the bucket, the region or AWS_ENDPOINT_URL"

_NEVER_WORKS = {
    "NoSuchBucket": "create the bucket or correct the storage URL",
    "InvalidBucketName": "correct the storage URL",
    "AccessDenied": _PERMISSIONS,
    "403": f"{_CREDENTIALS}; {_PERMISSIONS}",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "AuthorizationHeaderMalformed": _ENDPOINT,
    "PermanentRedirect": _ENDPOINT,
}
"""What to do, by S3 error code, where trying again cannot help."""

_BAD_SETUP = (
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ConfigParseError,
    EndpointProviderError,
    ParamValidationError,
)


class S3Store:
    """Objects are keys below `prefix` in `bucket`.

    Credentials, region and endpoint are those of boto3's own chain. Where `AWS_ENDPOINT_URL` is
    set, buckets are addressed by path.
    """

    sends_requests = True
    largest_file_bytes = _LARGEST_PUT_BYTES - (1 << 30)

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._root = f"{prefix}/" if prefix else ""

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return f"s3://{self._bucket}/{self._root}".rstrip("/")

    def put(self, path: str, chunks: Sequence[bytes | memoryview]) -> None:
        """See `ObjectStore.put`."""
        key = self._key(path)
        size_bytes = sum(map(len, chunks))
        if size_bytes > _LARGEST_PUT_BYTES:
            raise BadInputError(
                f"storage {self.url} takes {_LARGEST_PUT_BYTES} bytes in one request, and the "
                f"object has {size_bytes}; lower cairn.file-merging.max-file-size, or change "
                "less state in one batch of a subtask",
                file=path,
            )
        body, sha256 = _body(chunks, size_bytes)
        try:
            self._client().put_object(
                Bucket=self._bucket,
                Key=key,
                Body=body,
                # The store itself refuses a second object of the name, whoever was first.
                IfNoneMatch="*",
                # The store compares, so bytes that were damaged on the way are refused and not
                # stored.
                ChecksumAlgorithm="SHA256",
                ChecksumSHA256=sha256,
            )
        except (ClientError, BotoCoreError) as error:
            if _code(error) != "PreconditionFailed":
                raise self._failed(error, "write", path) from error
            # boto3 tried again after an answer was lost: the object may be its own first try.
            if not (_was_retried(error) and self._holds(path, size_bytes, sha256)):
                raise exists_error(self.url, path) from error
            facts = {"storage": self.url, "file": path, "size_bytes": size_bytes}
            _log.warning("object found written by a try whose answer was lost", extra=facts)

    def get(self, path: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        check_range(path, offset, size_bytes)
        data = b"" if size_bytes == 0 else self._read(path, offset, size_bytes)
        # No HEAD where the answer is as asked: a restore reads thousands of segments.
        if data and size_bytes in (None, len(data)):
            return data
        found_bytes, _ = self._head(path, offset)
        wanted_bytes = found_bytes - offset if size_bytes is None else size_bytes
        if offset > found_bytes or len(data) != wanted_bytes:
            raise short_read_error(self.url, path, offset, size_bytes, found_bytes)
        return data

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """See `ObjectStore.list`; a page is one answer of the server, up to 1,000 objects."""
        check_prefix(prefix)
        return self._pages(prefix)

    def delete_many(self, paths: Sequence[str]) -> dict[str, str]:
        """See `ObjectStore.delete_many`; only `cairn/maintenance/deleter.py` may call this."""
        for path in paths:
            check_path(path)
        failed: dict[str, str] = {}
        for start in range(0, len(paths), _DELETES_PER_REQUEST):
            failed |= self._delete(paths[start : start + _DELETES_PER_REQUEST])
        return failed

    def append(self, path: str, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        """See `ObjectStore.append`; S3 shows an object only once it is whole."""
        raise BadInputError(
            f"storage {self.url}: objects on S3 cannot be appended to", file=path, offset=offset
        )

    def can_append(self) -> bool:
        """See `ObjectStore.can_append`."""
        return False

    def remove_directory(self, path: str) -> bool:
        """See `ObjectStore.remove_directory`; S3 has none, so one without objects is removed."""
        return self._is_empty(path)

    def remove_empty(self, path: str) -> bool:
        """See `ObjectStore.remove_empty`; S3 has no directories."""
        return self._is_empty(path)

    def check_writable(self) -> None:
        """See `ObjectStore.check_writable`."""
        check_by_probe(self)

    def _client(self) -> S3Client:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        try:
            return _client_of(os.getpid(), endpoint)
        except BotoCoreError as error:
            raise self._failed(error, "connect") from error

    def _is_empty(self, path: str) -> bool:
        check_path(path)
        return next(iter(self.list(f"{path}/")), None) is None

    def _key(self, path: str) -> str:
        check_path(path)
        return self._root + path

    def _read(self, path: str, offset: int, size_bytes: int | None) -> bytes:
        """Returns what the object has of the range: nothing if it ends before."""
        last = "" if size_bytes is None else offset + size_bytes - 1
        try:
            answer = self._client().get_object(
                Bucket=self._bucket, Key=self._key(path), Range=f"bytes={offset}-{last}"
            )
            return answer["Body"].read()
        except (ClientError, BotoCoreError) as error:
            # Of a range behind the end; the caller asks how long the object is, to say so.
            if _code(error) == "InvalidRange":
                return b""
            raise self._failed(error, "read", path, offset) from error

    def _head(self, path: str, offset: int | None = None) -> tuple[int, str | None]:
        """Returns an object's size in bytes and its SHA-256 in base64, where recorded."""
        try:
            answer = self._client().head_object(
                Bucket=self._bucket, Key=self._key(path), ChecksumMode="ENABLED"
            )
        except (ClientError, BotoCoreError) as error:
            raise self._failed(error, "read", path, offset) from error
        return answer["ContentLength"], answer.get("ChecksumSHA256")

    def _holds(self, path: str, size_bytes: int, sha256: str) -> bool:
        return self._head(path) == (size_bytes, sha256)

    def _pages(self, prefix: str) -> Iterator[StoredObject]:
        pages = (
            self._client()
            .get_paginator("list_objects_v2")
            .paginate(Bucket=self._bucket, Prefix=self._root + prefix)
        )
        try:
            for page in pages:
                objects = [
                    StoredObject(
                        entry["Key"].removeprefix(self._root), entry["Size"], entry["LastModified"]
                    )
                    for entry in page.get("Contents", [])
                    if not entry["Key"].endswith("/")  # a "directory" made by some other tool
                ]
                # Some stores sort by other rules than the contract's.
                yield from sorted(objects, key=lambda stored: stored.path)
        except (ClientError, BotoCoreError) as error:
            raise self._failed(error, "list", prefix) from error

    def _delete(self, paths: Sequence[str]) -> dict[str, str]:
        """Returns error text by path for those that the server did not report as deleted."""
        keys = {self._key(path): path for path in paths}
        try:
            answer = self._client().delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in keys]}
            )
        except (ClientError, BotoCoreError) as error:
            raise self._failed(error, "delete") from error
        errors = {
            entry["Key"]: f"{entry.get('Code')}: {entry.get('Message')}"
            for entry in answer.get("Errors", [])
        }
        # What the answer names neither way counts as failed: an intent is closed only on proof.
        deleted = {entry["Key"] for entry in answer.get("Deleted", [])}
        silent = "the server's answer does not say whether it was deleted"
        return {path: errors.get(key, silent) for key, path in keys.items() if key not in deleted}

    def _failed(
        self,
        error: ClientError | BotoCoreError,
        verb: str,
        path: str | None = None,
        offset: int | None = None,
    ) -> BadInputError | StorageError:
        """Returns Cairn's error for one of botocore's."""
        code = _code(error)
        text = f"storage {self.url}: cannot {verb}: {str(error).rstrip('.')}"
        if path is not None and code in ("NoSuchKey", "404"):
            return missing_error(self.url, path, offset)
        if isinstance(error, _BAD_SETUP):
            return BadInputError(f"{text}; {_CREDENTIALS}, {_ENDPOINT}", file=path, offset=offset)
        if code in _NEVER_WORKS:
            return BadInputError(f"{text}; {_NEVER_WORKS[code]}", file=path, offset=offset)
        return StorageError(text, file=path, offset=offset)


@functools.cache
def _client_of(pid: int, endpoint: str | None) -> S3Client:
    """Returns this process's client; `pid` keeps a forked worker off its parent's sockets."""
    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries={"mode": "standard"},
        s3={"addressing_style": "path"} if endpoint else None,
    )
    try:
        client = boto3.Session().client("s3", config=config)
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


def _body(chunks: Sequence[bytes | memoryview], size_bytes: int) -> tuple[bytes | IO[bytes], str]:
    """Returns the content of an object, and its SHA-256 in base64."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    # Joined where that is little: boto3 sends a file in pieces, after a question to the server.
    is_small = size_bytes <= _JOINED_BYTES
    content = b"".join(chunks) if is_small else cast(IO[bytes], ChunkReader(chunks))
    return content, b64encode(digest.digest()).decode()


def _code(error: ClientError | BotoCoreError) -> str:
    """Returns the server's error code, or nothing where no server answered."""
    return error.response["Error"]["Code"] if isinstance(error, ClientError) else ""


def _was_retried(error: ClientError | BotoCoreError) -> bool:
    return (
        isinstance(error, ClientError) and error.response["ResponseMetadata"]["RetryAttempts"] > 0
    )
