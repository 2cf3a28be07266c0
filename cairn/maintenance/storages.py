"""Where the maintenance may delete: below the storages that its own environment names.

Rows of the metastore say where a job's objects are, and a job may write them. So whoever may write
rows could have the cleanup delete with its rights what they have no right to.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import unquote

from cairn.catalog.cleanup.snapshot import JobFacts
from cairn.errors import BadInputError, RefusedError
from cairn.storage import ObjectStore, normalise_url, open_store

STORAGES_VARIABLE = "CAIRN_STORAGES"
"""Environment variable of the maintenance: URLs of storages or of directories above them."""


def open_allowed(job: JobFacts) -> ObjectStore:
    """Returns the store of a job whose objects this process may delete.

    A directory is opened by its real path, so that nothing is deleted through a link that was made
    since.

    Raises:
        BadInputError: `CAIRN_STORAGES` is not set, or is no list of URLs.
        RefusedError: the job's storage is not below one of them.
    """
    require_allowed(job, job.storage)
    scheme, _, rest = job.storage.partition("://")
    return open_store(os.path.realpath(unquote(rest)) if scheme == "file" else job.storage)


def require_allowed(job: JobFacts, url: str) -> None:
    """Refuses to delete in a store that is not below one of `CAIRN_STORAGES`.

    Raises:
        BadInputError, RefusedError: see `open_allowed`.
    """
    given = os.environ.get(STORAGES_VARIABLE, "").split()
    if not given:
        raise BadInputError(
            f"{STORAGES_VARIABLE} is not set where this runs, so nothing is deleted. Set it to the "
            "storages that may be cleaned, separated by spaces, or to directories above them; this "
            f"job's is {url}",
            job=job.name,
        )
    # Spelt in another way, it was not written by Cairn: every run stores the normal form.
    if normalise_url(url) != url or not any(_is_below(_parts(url), _parts(one)) for one in given):
        raise RefusedError(
            f"the job's storage {url} is not below {' or '.join(given)}, where this process may "
            f"delete, so nothing was changed. If it is yours, add it to {STORAGES_VARIABLE}; if "
            "not, find out who registered the job",
            job=job.name,
        )


def _parts(url: str) -> list[str]:
    """Returns the scheme and the parts of a URL; of a directory those of its real path."""
    scheme, _, rest = normalise_url(url).partition("://")
    path = os.path.realpath(unquote(rest)) if scheme == "file" else rest
    return [scheme, *filter(None, path.split("/"))]


def _is_below(parts: Sequence[str], above: Sequence[str]) -> bool:
    return list(parts[: len(above)]) == list(above)
