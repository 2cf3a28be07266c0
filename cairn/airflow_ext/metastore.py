"""How a DAG finds the metastore."""

from __future__ import annotations

import os

from cairn.errors import BadInputError

METASTORE_VARIABLE = "CAIRN_METASTORE"
"""Environment variable of the workers; takes the same forms as `cairn.Job(metastore=…)`."""


def metastore_url() -> str:
    """Returns the SQLAlchemy URL of the metastore that `CAIRN_METASTORE` names.

    Raises:
        BadInputError: the variable is not set, or is not a metastore.
        MetastoreError: an embedded metastore did not start.
    """
    from cairn.catalog.embedded import resolve_url  # noqa: PLC0415 - keeps DAG parsing light

    metastore = os.environ.get(METASTORE_VARIABLE)
    if not metastore:
        raise BadInputError(
            f"{METASTORE_VARIABLE} is not set for Airflow's workers. Set it to "
            "postgresql://user@host:5432/database or embedded:<directory> and start them again"
        )
    return resolve_url(metastore)
