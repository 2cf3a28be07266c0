"""Orphans on local disk, from the listing to their quarantine: memory may not hold them all."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Self
from uuid import UUID, uuid4

from cairn.catalog.cleanup.quarantine import Orphan, Place
from cairn.maintenance.orphans import Suspect

BATCH_ORPHANS = 1000
"""Most that are set aside in one transaction, under the job's lock."""

MOST_SAMPLED = 100
"""Orphans that a stored plan names."""


class OrphanSpill:
    """A temporary file with an orphan a line, to be used by `with`."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - see __exit__
        self._digest = hashlib.sha256()
        self.sample: list[str] = []
        self.objects = 0
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        """The SHA-256 of all that was added."""
        return self._digest.hexdigest()

    def add(self, orphan: Suspect) -> None:
        """Adds one, under an id by which a transaction that runs again knows it."""
        line = json.dumps(
            [
                str(uuid4()),
                orphan.path,
                orphan.upload_id,
                orphan.reason.value,
                orphan.size_bytes,
                orphan.version,
                orphan.modified_at.isoformat(),
            ]
        )
        self._file.write(line + "\n")
        self._digest.update(line.encode())
        self.objects += 1
        self.size_bytes += orphan.size_bytes
        if len(self.sample) < MOST_SAMPLED:
            self.sample.append(orphan.path)

    def batches(self) -> Iterator[list[Orphan]]:
        """Yields all that was added, some at a time."""
        self._file.seek(0)
        orphans = (_orphan(json.loads(line)) for line in self._file)
        while some := list(islice(orphans, BATCH_ORPHANS)):
            yield some


def _orphan(fields: list[Any]) -> Orphan:
    quarantine_id, path, upload_id, reason, size_bytes, version, modified_at = fields
    return Orphan(
        quarantine_id=UUID(quarantine_id),
        place=Place(path, upload_id),
        reason=reason,
        size_bytes=size_bytes,
        version=version,
        modified_at=datetime.fromisoformat(modified_at),
    )
