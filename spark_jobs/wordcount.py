"""FLIP-306's test job: word count in tumbling windows of event time, as a stateful stream.

    python -m spark_jobs.wordcount --source DIR --storage URL --metastore URL --spark-checkpoint DIR

Each text file of the source directory is one record; a line's event time is its index in its file
in seconds; the key is word and window.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

import cairn
from spark_jobs import environment

WINDOW = "10 minutes"
WORD = "[A-Za-z_][A-Za-z_0-9]*"
"""The pattern of a word, in the syntax that Java's and Python's regular expressions share."""


class CountWords(StatefulProcessor):
    """Counts the rows of each key for ever and yields the new count."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declares the count."""
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,
    ) -> Iterator[Row]:
        """Adds the rows to the key's count."""
        known = self._count.get()
        count = (known[0] if known else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(word=key[0], window_start=key[1], n=count)

    def close(self) -> None:
        """Holds nothing that needs closing."""


def words(session: SparkSession, source: str, files_per_batch: int) -> DataFrame:
    """Returns a stream of `word, window_start`, one row per word of the files in a directory."""
    lines = (
        session.readStream.format("text")
        .option("wholetext", True)
        .option("maxFilesPerTrigger", files_per_batch)
        .load(source)
        .select(F.posexplode(F.split("value", "\n")).alias("second", "line"))
    )
    return lines.select(
        F.explode(F.regexp_extract_all("line", F.lit(f"({WORD})"))).alias("word"),
        F.window(F.timestamp_seconds("second"), WINDOW).start.alias("window_start"),
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", required=True, help="directory of text files")
    parser.add_argument("--storage", required=True, help="s3://…, file:///… or a path")
    parser.add_argument("--metastore", required=True, help="SQLAlchemy URL or embedded:DIRECTORY")
    parser.add_argument("--spark-checkpoint", required=True, help="Spark's checkpointLocation")
    parser.add_argument("--job", default="wordcount")
    parser.add_argument("--parallelism", type=int, default=4)
    parser.add_argument("--files-per-batch", type=int, default=50)
    parser.add_argument("--materialize-interval", default="10 min")
    parser.add_argument("--file-retention", default="1 h", help="how long condemned files stay")
    parser.add_argument("--local-dir", help="where subtasks keep their local state")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument(
        "--keep-running", action="store_true", help="wait for new files instead of stopping"
    )
    parser.add_argument(
        "--supervised",
        action="store_true",
        help="start it again after failures, and rescale or stop it when asked (cairn.run)",
    )
    parser.add_argument(
        "--heartbeat", action="store_true", help="a batch a second while there are no new files"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the stream until the source is read, or for ever with `--keep-running`."""
    args = _arguments(argv)
    environment.prepare()
    session = (
        SparkSession.builder.appName("wordcount")
        .master(args.master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", args.parallelism)
        .config("spark.shuffle.reduceLocality.enabled", "false")
        .getOrCreate()
    )
    options = {
        "cairn.changelog.periodic-materialize.interval": args.materialize_interval,
        "cairn.heartbeat.enabled": args.heartbeat,
        "cairn.file-retention": args.file_retention,
    }
    if args.local_dir:
        options["cairn.local-dir"] = args.local_dir
    job = cairn.Job(
        args.job,
        storage=args.storage,
        metastore=args.metastore,
        parallelism=args.parallelism,
        options=options,
    )

    def build(job: cairn.Job) -> StreamingQuery:
        stream = words(session, args.source, args.files_per_batch)
        counts = job.groupBy(stream, "word", "window_start").transformWithState(
            CountWords(), "word string, window_start timestamp, n long", "Update", "None"
        )
        writer = counts.writeStream.format("noop").outputMode("update")
        writer = writer.option("checkpointLocation", args.spark_checkpoint)
        if args.keep_running:
            return writer.trigger(processingTime="1 second").start()
        return writer.trigger(availableNow=True).start()

    if args.supervised:
        cairn.run(build, job)
    else:
        build(job).awaitTermination()


if __name__ == "__main__":
    main()
