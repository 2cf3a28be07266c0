"""An object store in an S3 bucket."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, cast

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
from cairn.storage.ranges import ByteRange, Part, plan_parts
from cairn.storage.s3_client import LONGEST_TRY_S, client_of
from cairn.storage.s3_copy import Upload
from cairn.storage.store import (
    LONGEST_WRITE_S,
    StoredObject,
    check_by_probe,
    check_path,
    check_prefix,
    check_range,
    exists_error,
    late_error,
    missing_error,
    short_read_error,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_log = logging.getLogger(__name__)

_LONGEST_COPY_S = LONGEST_WRITE_S - LONGEST_TRY_S
"""After it, one try of the request that makes the object appear still ends in LONGEST_WRITE_S."""
_DELETES_PER_REQUEST = 1000
_CHECKS_AT_ONCE = 4
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

    def copy(self, path: str, ranges: Sequence[ByteRange]) -> int:
        """See `ObjectStore.copy`; ranges from 5 MiB are copied by the server."""
        began_s = time.monotonic()
        key, parts = self._key(path), plan_parts(ranges)
        for one in ranges:
            check_range(one.path, one.offset, one.size_bytes)
        if len(parts) < 2 and not any(part.is_copied for part in parts):
            self.put(path, [self._read_part(part) for part in parts])
            return sum(part.size_bytes for part in parts)
        self._check_copy(path, parts)
        try:
            self._upload(path, key, parts, began_s)
        except (ClientError, BotoCoreError) as error:
            if _code(error) == "PreconditionFailed":
                raise exists_error(self.url, path) from error
            raise self._failed(error, "copy to", path) from error
        found_bytes, _ = self._head(path)
        size_bytes = sum(part.size_bytes for part in parts)
        if found_bytes != size_bytes:
            raise short_read_error(self.url, path, 0, size_bytes, found_bytes)
        return sum(part.size_bytes for part in parts if not part.is_copied)

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

    def _upload(self, path: str, key: str, parts: Sequence[Part], began_s: float) -> None:
        upload = Upload(self._client(), self._bucket, key)
        is_complete = False
        try:
            with ThreadPoolExecutor(1) as thread:
                # Once: a second try could make the object appear after LONGEST_WRITE_S. Meanwhile:
                # the first one of a process takes as long to make as some copies.
                client = thread.submit(self._client, 1)
                made = upload.send(parts, self._key, self._read_part)
            took_s = time.monotonic() - began_s
            if took_s > _LONGEST_COPY_S:
                raise late_error(self.url, path, took_s, _LONGEST_COPY_S)
            upload.complete(client.result(), made)
            is_complete = True
        finally:
            if not is_complete:
                upload.abort()

    def _read_part(self, part: Part) -> bytes:
        read = []
        for one in part.ranges:
            read.append(self.get(one.path, one.offset, one.size_bytes))
            one.check(read[-1])
        return b"".join(read)

    def _check_copy(self, path: str, parts: Sequence[Part]) -> None:
        """Raises StorageError unless all that the server is to copy is there.

        Raises RefusedError if an object has the path.
        """
        ends: dict[str, ByteRange] = {}
        for part in parts:
            for one in part.ranges if part.is_copied else ():
                if one.path not in ends or ends[one.path].end < one.end:
                    ends[one.path] = one
        # All at once: one after the other, these small requests took as long as some copies.
        with ThreadPoolExecutor(_CHECKS_AT_ONCE) as threads:
            # Some stores look at If-None-Match in a put only.
            exists = threads.submit(self._exists, path)
            checks = [threads.submit(self._check_source, one) for one in ends.values()]
        for check in checks:
            check.result()
        if exists.result():
            raise exists_error(self.url, path)

    def _check_source(self, one: ByteRange) -> None:
        found_bytes, _ = self._head(one.path, one.offset)
        if found_bytes < one.end:
            raise short_read_error(self.url, one.path, one.offset, one.size_bytes, found_bytes)

    def _exists(self, path: str) -> bool:
        listed = next(iter(self._pages(path)), None)
        return listed is not None and listed.path == path

    def _client(self, tries: int | None = None) -> S3Client:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        try:
            return client_of(os.getpid(), endpoint, tries)
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
