"""Object storage: one interface, a directory or an S3 bucket behind it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from cairn.errors import BadInputError
from cairn.storage.inventory import Inventory
from cairn.storage.posix import PosixStore
from cairn.storage.posix_inventory import PosixInventory
from cairn.storage.store import ObjectStore, StoredObject, check_path

__all__ = [
    "Inventory",
    "ObjectStore",
    "StoredObject",
    "inventory_of",
    "normalise_url",
    "open_store",
]

_FORMS = "storage is one of s3://bucket/prefix, file:///absolute/path or a path"
_S3 = ("s3", "s3a", "s3n")
"""All mean S3: Hadoop names its clients so, and users copy what they give Spark."""


def open_store(url: str) -> ObjectStore:
    """Returns the store at `s3://bucket/prefix`, `file:///path` or a plain path.

    Nothing is read or written yet; see `ObjectStore.check_writable`.

    Raises:
        BadInputError: the URL has another form, or boto3 is missing for S3.
    """
    scheme, _, rest = normalise_url(url).partition("://")
    if scheme == "file":
        return PosixStore(Path(unquote(rest)))
    try:
        # Here, so that storage in a directory needs no boto3.
        from cairn.storage.s3 import S3Store  # noqa: PLC0415 - boto3 is an extra
    except ModuleNotFoundError as error:
        raise BadInputError(
            f"storage on S3 needs {error.name}; install it by: pip install 'cairn-streaming[s3]'"
        ) from error
    bucket, _, prefix = rest.partition("/")
    return S3Store(bucket, prefix)


def inventory_of(store: ObjectStore) -> Inventory:
    """Returns the inventory of a store that `open_store` has opened."""
    if isinstance(store, PosixStore):
        return PosixInventory(store)
    from cairn.storage.s3 import S3Store  # noqa: PLC0415 - boto3 is an extra
    from cairn.storage.s3_inventory import S3Inventory  # noqa: PLC0415

    if isinstance(store, S3Store):
        return S3Inventory(store)
    raise TypeError(f"{type(store)} has no inventory")


def normalise_url(url: str) -> str:
    """Returns the one spelling of a storage URL, to compare storages by.

    A plain path becomes absolute and `file:///…`, `s3a://` and `s3n://` become `s3://`; slashes at
    the end are removed.

    Raises:
        BadInputError: the URL has another form; the message lists the forms.
    """
    scheme, colon, rest = url.partition(":/")
    if colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return _normalise_scheme(scheme.lower(), f"/{rest}")
    if not url or "\0" in url:
        raise BadInputError(f"{_FORMS}; found {url!r}")
    return _file_url(os.path.expanduser(url))


def _normalise_scheme(scheme: str, rest: str) -> str:
    """Takes what follows the colon; does not repeat it in errors: it may hold a password."""
    if scheme == "file" and rest.startswith("///"):
        return _file_url(unquote(rest[2:]))
    if scheme not in _S3 or not rest.startswith("//"):
        raise BadInputError(f"{_FORMS}; found a URL that starts with '{scheme}:'")
    bucket, _, prefix = rest[2:].rstrip("/").partition("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", bucket) or re.search(r"[?#]", prefix):
        raise BadInputError(
            f"{_FORMS}; found an S3 URL without a valid bucket name or with '?' or '#'. "
            "Credentials do not belong in it, boto3 finds them in the environment, a profile or "
            "a role"
        )
    if prefix:
        check_path(prefix)
    return f"s3://{bucket}/{prefix}".rstrip("/")


def _file_url(path: str) -> str:
    # abspath keeps two slashes at the start, which POSIX lets mean something else.
    return Path("/" + os.path.abspath(path).lstrip("/")).as_uri()
