"""The library's front: `cairn.Job`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from cairn.catalog.embedded import EMBEDDED_PREFIX, resolve_url
from cairn.catalog.migrate import migrate, require_current
from cairn.errors import BadInputError
from cairn.runtime.driver.grouped import GroupedData
from cairn.savepoints.manifest_files import check_manifest_url
from cairn.settings import Settings
from cairn.storage import normalise_url


class Job:
    """A named stateful operator with its own state, storage root and key groups.

    Args:
        name: what the job is called in the metastore; one running query per name.
        storage: `s3://bucket/prefix`, `file:///directory` or a path.
        metastore: a SQLAlchemy URL of a migrated PostgreSQL, or `embedded:<directory>`.
        parallelism: how many subtasks the operator has, 1 to `cairn.max-parallelism`.
        options: `cairn.…` keys, see `cairn.settings`.
        restore_from: the URL of a manifest, `…/chk-<n>/_metadata`, whose state a job without any
            starts from, at any parallelism. The source is copied and stays as it is. A job that
            has state goes on from that.

    Raises:
        BadInputError: a value is unknown, of the wrong type or out of its range.
    """

    def __init__(
        self,
        name: str,
        *,
        storage: str,
        metastore: str,
        parallelism: int,
        options: Mapping[str, object] | None = None,
        restore_from: str | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise BadInputError(f"a job's name is text that is not empty, not {name!r}")
        self.name = name
        self.settings = Settings.from_options(options or {})
        highest = self.settings.max_parallelism
        if not isinstance(parallelism, int) or not 1 <= parallelism <= highest:
            raise BadInputError(
                f"parallelism is {parallelism!r}; allowed: 1 to cairn.max-parallelism, which is "
                f"{highest}. Lower it, or for a new job raise cairn.max-parallelism (it is fixed "
                "once the job has state)",
                job=name,
            )
        self.parallelism = parallelism
        self.storage = normalise_url(storage)
        self.restore_from = None if restore_from is None else check_manifest_url(restore_from)
        self._metastore = metastore

    def __repr__(self) -> str:
        return f"Job({self.name!r}, storage={self.storage!r}, parallelism={self.parallelism})"

    def groupBy(self, df: DataFrame | Sequence[DataFrame], *cols: str) -> GroupedData:
        """Returns a streaming or batch DataFrame grouped by some of its columns, by name.

        Several DataFrames are united by column name. With event time, each needs `withWatermark`;
        the watermark is the least over all of them, as Spark's is.

        Raises:
            BadInputError: no column, not a name, or a name that a DataFrame does not have.
        """
        dfs = [df] if isinstance(df, DataFrame) else [*df]
        if not cols or not dfs:
            raise BadInputError("groupBy needs a DataFrame and a column", job=self.name)
        for col in cols:
            if not isinstance(col, str):
                raise BadInputError(
                    f"groupBy takes column names, not {type(col).__name__}; add the expression "
                    "with df.withColumn(name, …) and group by that name",
                    job=self.name,
                )
            for one in dfs:
                if col not in one.columns:
                    raise BadInputError(
                        f"no column {col!r}; the DataFrame has {', '.join(one.columns)}",
                        job=self.name,
                    )
        return GroupedData(self, dfs, cols)

    def open_metastore(self) -> str:
        """Returns the metastore's SQLAlchemy URL; starts and migrates an embedded one.

        Raises:
            RefusedError: the database's revision is not the one this version needs.
        """
        url = resolve_url(self._metastore)
        if self._metastore.startswith(EMBEDDED_PREFIX):
            migrate(url)
        require_current(url)
        return url
