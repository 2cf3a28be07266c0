"""Opening files below a storage's root, and making directories durable."""

from __future__ import annotations

import os
from pathlib import Path


def open_no_link(path: str, flags: int) -> int:
    """Opens a file, but no symbolic link: one in its place could lead out of the storage."""
    return os.open(path, flags | os.O_NOFOLLOW)


def open_present(path: str, flags: int) -> int:
    """Does the same, and never makes a file."""
    return os.open(path, flags & ~os.O_CREAT | os.O_NOFOLLOW)


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
