"""What the store gives to a program that only copies: the measure for folds and compactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import uuid4

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from cairn.storage import open_store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CopySourceTypeDef

AT_ONCE = 4


def copy_in_store(storage: str, paths: Sequence[str], part_bytes: int) -> float:
    """Lets the store copy objects in parts, as `aws s3 cp` does; returns how long it took, in s."""
    bucket, client = urlsplit(storage).netloc, _client()
    parts = TransferConfig(
        multipart_threshold=part_bytes, multipart_chunksize=part_bytes, max_concurrency=AT_ONCE
    )

    def copy(path: str) -> None:
        client.copy({"Bucket": bucket, "Key": path}, bucket, _target(), Config=parts)

    return _timed(copy, paths)


def copy_whole_in_store(storage: str, paths: Sequence[str]) -> float:
    """Does the same with one request an object, which can copy no part of one."""
    bucket, client = urlsplit(storage).netloc, _client()

    def copy(path: str) -> None:
        source: CopySourceTypeDef = {"Bucket": bucket, "Key": path}
        client.copy_object(Bucket=bucket, Key=_target(), CopySource=source)

    return _timed(copy, paths)


def copy_through_client(storage: str, paths: Sequence[str]) -> float:
    """Reads objects and writes them again, as Cairn does; returns how long that took, in s."""
    store = open_store(storage)
    return _timed(lambda path: store.put(_target(), [store.get(path)]), paths)


def _client() -> S3Client:
    config = Config(s3={"addressing_style": "path"}, max_pool_connections=AT_ONCE * AT_ONCE)
    return boto3.Session().client("s3", config=config)


def _target() -> str:
    return f"plain/{uuid4()}"


def _timed(copy: Callable[[str], None], paths: Sequence[str]) -> float:
    copy(paths[0])  # connects
    began_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(copy, paths))
    return time.monotonic() - began_s
