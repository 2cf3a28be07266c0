"""Asking a running query for something, and waiting for it without a worker. See `cairn.run`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from cairn.airflow_ext.errors import airflow_errors
from cairn.airflow_ext.maintenance import params_of_run

log = logging.getLogger(__name__)

DONE_WITHIN = timedelta(hours=6)
"""A batch may take as long; the request stays after that, and `cairn requests` shows it."""
_LOOK_S = 2.0


class Rescale(BaseOperator):
    """Asks for another parallelism of a job, and returns the result of the request as a dict.

    Job, parallelism and `dry_run` are params of the Dag run. A try after the first one waits for
    the request that the first one has made. A dry run returns what the parallelism is now.

    Raises:
        AirflowFailException: the request was refused, withdrawn or has failed; never retried.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Asks once a Dag run, and defers until it is over."""
        from cairn.catalog import requests  # noqa: PLC0415
        from cairn.catalog.catalog import find_catalog  # noqa: PLC0415
        from cairn.catalog.requests import Wanted  # noqa: PLC0415
        from metastore.enums import RequestKind  # noqa: PLC0415

        params = params_of_run()
        job, parallelism = params["job"], params["parallelism"]
        run = context["dag_run"]
        wanted = Wanted(
            request_id=uuid5(NAMESPACE_OID, f"{run.dag_id} {run.run_id} {job} {parallelism}"),
            kind=RequestKind.RESCALE,
            parallelism=parallelism,
        )
        with airflow_errors():
            if params["dry_run"]:
                was = find_catalog().run(
                    f"checking job {job}", lambda c: requests.check(c, job, wanted)
                )
                return {"job": job, "was": was, "parallelism": parallelism, "dry_run": True}
            asked = find_catalog().run(
                f"asking for a rescale of job {job}", lambda c: requests.ask(c, job, wanted)
            )
        log.info("asked for %s", asked)
        self.defer(
            trigger=RequestIsOver(request_id=str(asked.request_id)),
            method_name="report",
            timeout=DONE_WITHIN,
        )

    def report(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Returns the result that the trigger has found."""
        log.info("%s", event)
        if event["status"] != "DONE":
            raise AirflowFailException(
                f"the rescale of job {event['job']} is {event['status']}: {event['message']}"
            )
        return event


class RequestIsOver(BaseTrigger):
    """Fires with the result of a request once it is over."""

    def __init__(self, request_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.request_id = request_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns what the triggerer makes it from."""
        return f"{__name__}.{type(self).__name__}", {"request_id": self.request_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Looks every two seconds."""
        # In a thread: the driver of the database blocks, and other triggers share this loop.
        while (result := await asyncio.to_thread(_result, self.request_id)) is None:
            await asyncio.sleep(_LOOK_S)
        yield TriggerEvent(result)  # type: ignore[no-untyped-call]


def _result(request_id: str) -> dict[str, Any] | None:
    from cairn.catalog import requests  # noqa: PLC0415
    from cairn.catalog.catalog import find_catalog  # noqa: PLC0415

    asked = find_catalog().run(
        "waiting for a request", lambda c: requests.request(c, UUID(request_id))
    )
    if not asked.is_over:
        return None
    return {
        "job": asked.job,
        "parallelism": asked.parallelism,
        "status": asked.status.value,
        "checkpoint": asked.checkpoint_id,
        "message": asked.message,
        "dry_run": False,
    }
