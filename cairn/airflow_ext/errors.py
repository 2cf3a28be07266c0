"""What becomes of Cairn's errors in a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException

from cairn.errors import BadInputError, FencedError, RefusedError


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Makes errors that trying again cannot help fail the task at once."""
    try:
        yield
    except FencedError:
        raise  # retried: who holds a lease may have been killed, and then it ends
    except (BadInputError, RefusedError) as error:
        raise AirflowFailException(str(error)) from error
