"""What is measured: one value a workload. A new line in `WORKLOADS` is a new workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks import processors

REQUEST_DELAY_MS = 30


class Kind(StrEnum):
    """What runs the rows."""

    NATIVE = "native"
    CAIRN = "cairn"
    FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class Engine:
    """One side of a comparison.

    `parallelism` replaces the workload's. `delay_ms` puts Cairn's storage on the S3 server, which
    then waits so long before each request; None is a local directory. `options` are the job's.
    """

    name: str
    kind: Kind
    parallelism: int | None = None
    delay_ms: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)


NATIVE = Engine("native", Kind.NATIVE)
CAIRN = Engine("cairn", Kind.CAIRN)
FLOOR = Engine("floor", Kind.FLOOR)
NATIVE_200 = Engine("native-200", Kind.NATIVE, parallelism=200)
CAIRN_MATERIALIZING = Engine(
    "cairn-materializing",
    Kind.CAIRN,
    # Two subtasks take turns, and each takes about 20 s beside batches on two cores.
    options={"cairn.changelog.periodic-materialize.interval": "80 s"},
)
_EVERY_30_S = {"cairn.changelog.periodic-materialize.interval": "30 s"}
CAIRN_NARROW = Engine("cairn-8", Kind.CAIRN, parallelism=8, options=_EVERY_30_S)
CAIRN_WIDE = Engine("cairn-200", Kind.CAIRN, parallelism=200, options=_EVERY_30_S)
CAIRN_S3 = Engine("cairn-s3", Kind.CAIRN, delay_ms=0)
CAIRN_SLOW_S3 = Engine(f"cairn-s3-{REQUEST_DELAY_MS}ms", Kind.CAIRN, delay_ms=REQUEST_DELAY_MS)


@dataclass(frozen=True, slots=True)
class Workload:
    """A processor and the shape of its input.

    The state is preloaded with one row for each key and item; then every batch has `rows` rows of
    random keys and items.
    """

    name: str
    about: str
    processor: type[StatefulProcessor]
    columns: tuple[str, ...]
    output: str
    rows: int
    keys: int
    items: int = 1
    parallelism: int = 2
    time_mode: str = "None"
    in_pandas: bool = False
    engines: tuple[Engine, ...] = (NATIVE, CAIRN, FLOOR)
    faster_than_native: float = 5.0
    """The least native/Cairn that is aimed at."""
    above_floor: float | None = None
    """The most Cairn/floor that is aimed at."""
    memory: bool = False
    """Whether the Python workers' memory is measured too."""
    batches: int | None = None
    """Timed ones in a repetition, if more are needed than elsewhere."""
    once: bool = False
    """Whether one repetition is enough, because only files are compared."""

    def tiny(self) -> Workload:
        """Returns the same workload at a size that proves only that it runs."""
        return replace(
            self,
            rows=max(1, self.rows // 100),
            keys=max(2, self.keys // 100),
            memory=False,
            batches=None,
        )


COUNTING = Workload(
    name="counting-p2",
    about="counting, P=2",
    processor=processors.Count,
    columns=("key", "value"),
    output="key string, n long",
    rows=50_000,
    keys=20_000,
    faster_than_native=8.0,
    above_floor=2.5,
    memory=True,
)
COUNTING_P8 = replace(
    COUNTING, name="counting-p8", about="counting, P=8", parallelism=8, memory=False
)

WORKLOADS = (
    COUNTING,
    COUNTING_P8,
    replace(
        COUNTING,
        name="counting-1m",
        about="counting, 1,000,000 keys of state",
        keys=1_000_000,
        faster_than_native=5.0,
        above_floor=None,
    ),
    Workload(
        name="map",
        about="map state, 20 entries a key",
        processor=processors.ItemCounts,
        columns=("key", "item"),
        output="key string, n long",
        rows=12_500,
        keys=5_000,
        items=20,
    ),
    Workload(
        name="list-timers",
        about="list append and timers",
        processor=processors.Gather,
        columns=("key", "value"),
        output="key string, n long, total long",
        rows=12_500,
        keys=5_000,
        time_mode="ProcessingTime",
    ),
    Workload(
        name="sessions-ttl",
        about="sessions with TTL",
        processor=processors.Sessions,
        columns=("key", "time_ms"),
        output="key string, first_ms long, last_ms long, n long",
        rows=50_000,
        keys=20_000,
        time_mode="ProcessingTime",
    ),
    Workload(
        name="rows-10",
        about="sums, 10 rows a key",
        processor=processors.Total,
        columns=("key", "value"),
        output="key string, n long",
        rows=50_000,
        keys=5_000,
    ),
    Workload(
        name="rows-10000",
        about="sums, 10,000 rows a key",
        processor=processors.Total,
        columns=("key", "value"),
        output="key string, n long",
        rows=100_000,
        keys=10,
    ),
    replace(
        COUNTING,
        name="pandas",
        about="counting, pandas form",
        processor=processors.CountInPandas,
        rows=12_500,
        keys=5_000,
        in_pandas=True,
        faster_than_native=4.0,
        above_floor=None,
        memory=False,
    ),
    replace(
        COUNTING,
        name="s3-p2",
        about=f"counting, P=2, S3 with {REQUEST_DELAY_MS} ms a request",
        engines=(CAIRN_S3, CAIRN_SLOW_S3),
        memory=False,
    ),
    replace(
        COUNTING_P8,
        name="s3-p8",
        about=f"counting, P=8, S3 with {REQUEST_DELAY_MS} ms a request",
        engines=(CAIRN_S3, CAIRN_SLOW_S3),
    ),
    replace(
        COUNTING,
        name="materializing",
        about="counting, 1,000,000 keys, materialized every 80 s",
        keys=1_000_000,
        engines=(CAIRN_MATERIALIZING,),
        memory=False,
        batches=130,
    ),
    replace(
        COUNTING_P8,
        name="files-200",
        about="counting, P=8 against native's default of 200 partitions",
        rows=2_000,
        keys=2_000,
        engines=(NATIVE_200, CAIRN),
        once=True,
    ),
    replace(
        COUNTING_P8,
        name="wide",
        about="counting, P=200 beside P=8, materialized every 30 s",
        rows=20_000,
        engines=(CAIRN_NARROW, CAIRN_WIDE),
        batches=500,
        once=True,
    ),
)
