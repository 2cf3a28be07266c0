"""The inventory of an S3 bucket: keys by ranges, and multipart uploads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from cairn.errors import StorageError
from cairn.storage.inventory import (
    EmptyDirectory,
    FoundObject,
    KeyRange,
    UnfinishedUpload,
    check_unfinished,
)
from cairn.storage.s3 import S3Store
from cairn.storage.store import check_path, check_prefix

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ObjectTypeDef


class S3Inventory:
    """Reads the bucket of an `S3Store`, a page of 1,000 keys in memory at a time."""

    splits_directories = True

    def __init__(self, store: S3Store) -> None:
        self._store = store

    def directories(self, path: str) -> list[str]:
        """See `Inventory.directories`: the common prefixes."""
        check_path(path)
        store, found = self._store, list[str]()
        pages = store._client().get_paginator("list_objects_v2")
        try:
            for page in pages.paginate(
                Bucket=store._bucket, Prefix=f"{store._root}{path}/", Delimiter="/"
            ):
                found += [
                    one["Prefix"].removeprefix(store._root)
                    for one in page.get("CommonPrefixes", [])
                ]
        except (ClientError, BotoCoreError) as error:
            raise store._failed(error, "list", path) from error
        return sorted(one.removeprefix(store._root).rstrip("/") for one in found)

    def list_all(self, keys: KeyRange) -> Iterator[FoundObject]:
        """See `Inventory.list_all`."""
        check_prefix(keys.prefix)
        return self._pages(keys)

    def find(self, path: str) -> FoundObject | None:
        """See `Inventory.find`."""
        store = self._store
        try:
            # A listing and no HEAD: that tells a missing bucket from a missing object, and has
            # times as exact as those of `list_all`.
            page = store._client().list_objects_v2(
                Bucket=store._bucket, Prefix=store._root + path, MaxKeys=1
            )
        except (ClientError, BotoCoreError) as error:
            raise store._failed(error, "look", path) from error
        found = [self._found(one) for one in page.get("Contents", [])]
        return found[0] if found and found[0].path == path else None

    def empty_directories(self, path: str) -> Iterator[EmptyDirectory]:
        """See `Inventory.empty_directories`; S3 has no directories."""
        check_path(path)
        return iter(())

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """See `Inventory.unfinished_uploads`."""
        check_prefix(prefix)
        store = self._store
        pages = store._client().get_paginator("list_multipart_uploads")
        try:
            for page in pages.paginate(Bucket=store._bucket, Prefix=store._root + prefix):
                for one in page.get("Uploads", []):
                    path = one["Key"].removeprefix(store._root)
                    yield UnfinishedUpload(path, one["UploadId"], one["Initiated"])
        except (ClientError, BotoCoreError) as error:
            raise store._failed(error, "list uploads", prefix) from error

    def now(self) -> datetime:
        """See `Inventory.now`: the header `Date` of an answer."""
        store = self._store
        try:
            answer = store._client().list_objects_v2(
                Bucket=store._bucket, Prefix=store._root, MaxKeys=1
            )
        except (ClientError, BotoCoreError) as error:
            raise store._failed(error, "list") from error
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None:
            raise StorageError(f"storage {store.url} does not say what time it is: no header Date")
        return parsedate_to_datetime(date).astimezone(UTC)

    def delete_unfinished(self, paths: Sequence[str]) -> dict[str, str]:
        """See `Inventory.delete_unfinished`: of a directory that was copied to the bucket."""
        for path in paths:
            check_unfinished(path)
        store, failed = self._store, dict[str, str]()
        for path in paths:
            try:
                store._client().delete_object(Bucket=store._bucket, Key=store._root + path)
            except (ClientError, BotoCoreError) as error:
                failed[path] = str(store._failed(error, "delete", path))
        return failed

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> dict[str, str]:
        """See `Inventory.abort_uploads`."""
        store, failed = self._store, dict[str, str]()
        for one in uploads:
            check_path(one.path)
            try:
                store._client().abort_multipart_upload(
                    Bucket=store._bucket, Key=store._root + one.path, UploadId=one.upload_id
                )
            except (ClientError, BotoCoreError) as error:
                is_gone = isinstance(error, ClientError) and (
                    error.response["Error"]["Code"] == "NoSuchUpload"
                )
                if not is_gone:
                    failed[one.upload_id] = str(store._failed(error, "abort an upload", one.path))
        return failed

    def _pages(self, keys: KeyRange) -> Iterator[FoundObject]:
        store = self._store
        pages = store._client().get_paginator("list_objects_v2")
        try:
            for page in pages.paginate(
                Bucket=store._bucket,
                Prefix=store._root + keys.prefix,
                StartAfter=store._root + keys.after,
            ):
                found = [self._found(one) for one in page.get("Contents", [])]
                # Some stores sort by other rules than the contract's.
                found.sort(key=lambda one: one.path)
                # Asked of each object only at the ends of a range, in whose middle all are in it.
                if found and keys.holds(found[0].path) and keys.holds(found[-1].path):
                    yield from found
                else:
                    yield from (one for one in found if keys.holds(one.path))
                if keys.until is not None and found and found[-1].path > keys.until:
                    return
        except (ClientError, BotoCoreError) as error:
            raise store._failed(error, "list", keys.prefix) from error

    def _found(self, one: ObjectTypeDef) -> FoundObject:
        return FoundObject(
            path=one["Key"].removeprefix(self._store._root),
            size_bytes=one["Size"],
            modified_at=one["LastModified"],
            version=one["ETag"],
            # A "directory" that some other tool has made.
            is_plain=not one["Key"].endswith("/"),
        )
