"""A stream on Spark Connect whose driver is watched; run as a program, it prints what it found."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import text

from cairn.batch_ref import BatchRef
from cairn.catalog.catalog import Catalog
from cairn.catalog.job.begin import begin_batch
from cairn.runtime.driver import run_watch
from tests.streams.streams import Settings, new_session, remembered, start, write_source

LEFT_ALONE = "UPDATE cairn.runs SET seen_at = now() - interval '2 hours' RETURNING epoch"
RUN_STATE = "SELECT run_state FROM cairn.v_jobs"


def main(argument: str) -> None:
    """Has a stream left alone, met by a second instance, and replaced by a newer run."""
    settings = msgspec.json.decode(argument, type=Settings)
    catalog, session = Catalog(settings.metastore), new_session(settings.master)
    run_watch.RENEW_S = 0.0
    run_watch.LOOK_S = 3600.0  # here it looks when it is told to
    found: dict[str, object] = {}

    def is_seen() -> str:
        run_watch._watch.look()
        return str(_sql(catalog, RUN_STATE))

    writer = remembered(session, settings).writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", settings.spark_checkpoint).start()
    query.processAllAvailable()
    [first] = [one.run for one in run_watch._watch._runs.values()]
    found["at first"] = is_seen()
    found["epoch"] = _sql(catalog, LEFT_ALONE)
    found["left alone"] = str(_sql(catalog, RUN_STATE))
    found["renewed"] = is_seen()

    second = replace(settings, spark_checkpoint=f"{settings.spark_checkpoint}-2")
    found["a second instance"] = _failure(start(remembered(session, second), second))
    write_source(Path(settings.source), 2)
    query.processAllAvailable()
    found["the first goes on"] = is_seen()

    # Begins the next batch as a newer run, as a second driver would.
    remembered(session, settings)
    newer = max((one.run for one in run_watch._watch._runs.values()), key=lambda run: run.epoch)
    batch = BatchRef(**asdict(newer), query_id=str(query.id), batch_id=2)
    catalog.run("testing", lambda c: begin_batch(c, batch))
    write_source(Path(settings.source), 3)
    found["once replaced"] = _failure(query)
    is_seen()
    is_seen()
    found["is watched"] = first.run_id in run_watch._watch._runs
    session.stop()
    run_watch._watch.look()
    print(json.dumps(found))


def _failure(query: StreamingQuery) -> str:
    try:
        query.awaitTermination(120)
    except StreamingQueryException as error:
        return str(error)
    return "none"


def _sql(catalog: Catalog, statement: str) -> object:
    return catalog.run("testing", lambda c: c.execute(text(statement)).scalar())


if __name__ == "__main__":
    main(sys.argv[1])
