"""Copying a range of one file to the end of another, by the file system where it can."""

from __future__ import annotations

import errno
import os
from io import FileIO
from typing import IO

from cairn.storage.ranges import ByteRange

_CANNOT = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ETXTBSY)
"""What a file system answers that does not copy by itself, or not between these two files."""


def copy_range(source: FileIO, one: ByteRange, target: IO[bytes]) -> int:
    """Appends a range, which the source has, to a file; returns how many bytes were read for it.

    Raises:
        OSError: one of the files failed.
        CorruptSegmentError: the bytes were read, and are not those of the checksum.
    """
    target.flush()
    if _copy_by_file_system(source.fileno(), one, target.fileno()):
        target.seek(0, os.SEEK_END)
        return 0
    # Whole, as its checksum is of the whole; a segment is about 32 MB.
    source.seek(one.offset)
    data = source.read(one.size_bytes)
    while len(data) < one.size_bytes:
        more = source.read(one.size_bytes - len(data))
        if not more:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data += more
    one.check(data)
    target.write(data)
    return one.size_bytes


def _copy_by_file_system(source: int, one: ByteRange, target: int) -> bool:
    """Tells whether it did; if not, the target is as it was."""
    start = os.fstat(target).st_size
    copied = 0
    while copied < one.size_bytes:
        try:
            some = os.copy_file_range(
                source, target, one.size_bytes - copied, one.offset + copied, start + copied
            )
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            some = 0
        # Some file systems answer 0 for what they cannot copy.
        if not some:
            os.ftruncate(target, start)
            return False
        copied += some
    return True
