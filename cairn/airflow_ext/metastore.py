"""How a DAG finds the metastore."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cairn.errors import BadInputError

if TYPE_CHECKING:
    from cairn.catalog.catalog import Catalog

METASTORE_VARIABLE = "CAIRN_METASTORE"
"""Environment variable of the workers; takes the same forms as `cairn.Job(metastore=…)`."""


def find_catalog() -> Catalog:
    """Returns the metastore that `CAIRN_METASTORE` names.

    Raises:
        BadInputError: the variable is not set, or is not a metastore.
        MetastoreError: an embedded metastore did not start.
    """
    from cairn.catalog.catalog import Catalog  # noqa: PLC0415 - keeps DAG parsing light
    from cairn.catalog.embedded import resolve_url  # noqa: PLC0415

    metastore = os.environ.get(METASTORE_VARIABLE)
    if not metastore:
        raise BadInputError(
            f"{METASTORE_VARIABLE} is not set for Airflow's workers. Set it to "
            "postgresql://user@host:5432/database or embedded:<directory> and start them again"
        )
    return Catalog(resolve_url(metastore))
