"""What makes a test's job delete at once what its cleanup condemns.

The default keeps it for an hour, for a metastore that is restored from a backup.
"""

from __future__ import annotations

DELETE_AT_ONCE_MS = 0
"""Of a registration or a row of `jobs`."""

DELETE_AT_ONCE = {"cairn.file-retention": "0 s"}
"""Among the options of a job."""
