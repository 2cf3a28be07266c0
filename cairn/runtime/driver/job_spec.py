"""A user's description of a job, checked: everything that building its plan needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from cairn.catalog.catalog import Catalog
from cairn.catalog.embedded import EMBEDDED_PREFIX, resolve_url
from cairn.catalog.migrate import migrate, require_current
from cairn.errors import BadInputError
from cairn.settings import Settings
from cairn.storage import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The arguments of `Job`. `metastore` may name an embedded one, which may not run yet."""

    name: str
    storage: str
    metastore: str = field(repr=False)
    parallelism: int
    settings: Settings
    restore_from: str | None = None
    supervisor_id: UUID | None = None
    """The call of `cairn.run` that has the query built, and does what is asked of it."""

    def open_catalog(self) -> Catalog:
        """Returns the metastore; starts and migrates an embedded one.

        Raises:
            RefusedError: the database's revision is not the one this version needs.
        """
        catalog = Catalog(resolve_url(self.metastore), self.settings.metastore_timeout_ms)
        # Only an embedded one is ours to change. A shared database is migrated by its operator.
        if self.metastore.startswith(EMBEDDED_PREFIX):
            migrate(catalog)
        require_current(catalog)
        return catalog

    def check_storage(self) -> None:
        """Checks that the job's storage can be written as its options ask.

        Raises:
            BadInputError: it can never be, or not with `across-checkpoint-boundary` or
                with files of `max-file-size`.
            StorageError: it does not work now.
        """
        store = open_store(self.storage)
        most_bytes, wanted_bytes = store.largest_file_bytes, self.settings.max_file_bytes
        if most_bytes is not None and wanted_bytes > most_bytes:
            raise BadInputError(
                f"cairn.file-merging.max-file-size is {wanted_bytes} bytes; on {store.url}, which "
                f"takes a file in one request, it is at most {most_bytes >> 30} gb",
                job=self.name,
            )
        store.check_writable()
        # Asked once, on the driver: the answer takes a probe in storage and holds for the run.
        if self.settings.merges_files_across and not store.can_append():
            raise BadInputError(
                "cairn.file-merging.across-checkpoint-boundary is true, but storage "
                f"{store.url} shows the bytes of a file only once it is closed: a checkpoint could "
                "not be read while its file is open. Leave the option out, or use a file system",
                job=self.name,
            )
