"""Where a running query is between two batches, as its progress tells."""

from __future__ import annotations

import time

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S = 0.05
_LATER_S = 0.5
_SOON_S = 2.0
"""So long it looks often: then the batch is a long one, and each look costs the driver some."""
_COMMITTED = "commitOffsets"
"""The step in which Spark writes that a batch is done; progress without it is of no batch."""


def await_batch_end(query: StreamingQuery) -> None:
    """Returns once the batch under way is committed, or there is none, or the query is over."""
    began_s = time.monotonic()
    seen = _batch_of(query.lastProgress)
    while query.isActive and query.status["isTriggerActive"]:
        if _batch_of(query.lastProgress) != seen:
            return
        time.sleep(_LOOK_S if time.monotonic() - began_s < _SOON_S else _LATER_S)


def committed_batch(query: StreamingQuery) -> int | None:
    """Returns the newest batch that this start of a query has committed; None: there is none."""
    done = (_batch_of(progress) for progress in reversed(query.recentProgress))
    return next((batch_id for batch_id in done if batch_id is not None), None)


def _batch_of(progress: StreamingQueryProgress | None) -> int | None:
    if progress is None or _COMMITTED not in progress.durationMs:
        return None
    return progress.batchId
