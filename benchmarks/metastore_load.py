"""A process that loads a metastore through the catalog that it finds on its path.

python -P -m benchmarks.metastore_load CALLS TREE

CALLS is the module with the calls, TREE the directory that the catalog must be from. Each line of
stdin is an order in JSON: a step, the metastore's URL and facts. Each answer is a line of JSON:
figures by point.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.metastore_executors import contention, many_jobs
from benchmarks.metastore_server import Server, TableSize
from benchmarks.metastore_shape import Batch, Calls, History, JobRef, Sizes, share

VIEWS = {
    "v_metrics": "SELECT * FROM cairn.v_metrics",
    "v_checkpoint_history": "SELECT * FROM cairn.v_checkpoint_history WHERE job_id = :job_id",
    "v_unneeded_files": "SELECT * FROM cairn.v_unneeded_files WHERE job_id = :job_id",
    "v_files": "SELECT * FROM cairn.v_files WHERE job_id = :job_id AND status <> 'DELETED'",
    "v_directories": "SELECT * FROM cairn.v_directories WHERE job_id = :job_id",
    "v_materialization": "SELECT * FROM cairn.v_materialization WHERE job_id = :job_id",
    "v_space_amplification": "SELECT * FROM cairn.v_space_amplification WHERE job_id = :job_id",
}
Figures = dict[str, dict[str, float]]
"""By point, such as a number of executors, and by name, which ends with the unit."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a step works with. `facts` are the step's own."""

    calls: Calls
    server: Server
    storage: str
    sizes: Sizes
    facts: Mapping[str, Any]

    def register(self, name: str, parallelism: int) -> JobRef:
        """Returns a new job."""
        return self.calls.register(name, parallelism, self.storage)

    def run_batch(self, job: JobRef, batch_id: int, executors: int = 1) -> int:
        """Runs a batch, one executor after the other; returns its checkpoint."""
        batch, checkpoint_id = Batch(job, batch_id), 0
        for executor in range(executors):
            subtasks = share(job.parallelism, executors, executor)
            if executor == 0:
                checkpoint_id = self.calls.begin(batch, subtasks)
            self.calls.commit_group(batch, checkpoint_id, executor, subtasks)
        return checkpoint_id


def _migrate(load: Load) -> Figures:
    load.calls.migrate()
    return {}


def _contention(load: Load) -> Figures:
    executors = int(load.facts["executors"])
    job = load.register(f"contention-{executors}", load.sizes.parallelism)
    return {_named(executors): contention(load.calls, load.server, job, executors, load.sizes)}


def _named(executors: int) -> str:
    return f"{executors} executor{'s' if executors > 1 else ''}"


def _many_jobs(load: Load) -> Figures:
    sizes = load.sizes
    jobs = [load.register(f"job-{number}", sizes.job_parallelism) for number in range(sizes.jobs)]
    point = f"{sizes.jobs} jobs of P={sizes.job_parallelism}"
    return {point: many_jobs(load.calls, load.server, jobs, sizes)}


def _fill(load: Load) -> Figures:
    """Gives the job `live` its history and one batch that is under way."""
    job, history = load.register("live", load.sizes.parallelism), _history(load)
    load.calls.fill(job, history)
    load.server.execute("VACUUM (ANALYZE)")
    load.server.execute("CHECKPOINT")
    load.calls.begin(Batch(job, history.batches), range(job.parallelism))
    [(size_bytes,)] = load.server.read("SELECT pg_database_size(current_database())")
    return {_point(load): {"database bytes": float(size_bytes)}}


def _live(load: Load) -> Figures:
    """Installs bases of other subtasks in each repetition, then plans and reads."""
    [(job_id, run_id)] = load.server.read(
        "SELECT job_id, run_id::text FROM cairn.jobs JOIN cairn.runs USING (job_id)"
        " WHERE name = 'live'"
    )
    job = JobRef("live", job_id, 1, load.sizes.parallelism, run_id)
    batches, installs = _history(load).batches, load.sizes.installs
    first = int(load.facts["repetition"]) * installs
    load.calls.plan_cleanup(job)  # opens the connection, and reads the tables once
    times = [
        load.calls.install_base(Batch(job, batches), subtask % job.parallelism, batches)
        for subtask in range(first, first + installs)
    ]
    figures = {
        "install of a base ms": 1000 * statistics.median(one["install"] for one in times),
        "planning a cleanup ms": _median_ms(load, lambda: load.calls.plan_cleanup(job)),
    }
    for view, sql in VIEWS.items():
        facts = {"job_id": job_id} if ":job_id" in sql else {}
        figures[f"{view} ms"] = _median_ms(load, partial(load.server.read, sql, **facts))
    return {_point(load): figures}


def _median_ms(load: Load, work: Callable[[], object]) -> float:
    times = []
    for _ in range(load.sizes.reads):
        began_s = time.monotonic()
        work()
        times.append(time.monotonic() - began_s)
    return 1000 * statistics.median(times)


def _point(load: Load) -> str:
    live, dead = int(load.facts["live"]), int(load.facts["dead"])
    return f"{live:,} live, {dead:,} dead segments"


def _history(load: Load) -> History:
    sizes = load.sizes
    return History(
        dead_batches=max(1, int(load.facts["dead"]) // sizes.parallelism),
        live_batches=int(load.facts["live"]) // sizes.parallelism,
        groups=sizes.live_groups,
    )


def _growth(load: Load) -> Figures:
    """Runs batches, materializes and cleans up, again and again; the last time is measured.

    Twice before: the second cycle begins with what the first one retains, as all later ones do, so
    only then are the tables as large as they must be.
    """
    parallelism, executors, batches = load.facts["growth"]
    job = load.register("growth", parallelism)
    _cycle(load, job, executors, first=0, batches=batches)
    _cycle(load, job, executors, first=batches, batches=batches)
    before = load.server.sizes()
    _cycle(load, job, executors, first=2 * batches, batches=batches)
    grown = _grown(before, load.server.sizes(), batches)
    return {f"P={parallelism}, {_named(executors)}, cleaned up": grown}


def _cycle(load: Load, job: JobRef, executors: int, *, first: int, batches: int) -> None:
    # Early enough that the cleanup retains no checkpoint from before: it retains three.
    materialized = first + batches - 5
    for batch_id in range(first, first + batches):
        checkpoint_id = load.run_batch(job, batch_id, executors)
        if batch_id == materialized:
            # As of the one before, which this batch has confirmed.
            for subtask in range(job.parallelism):
                load.calls.install_base(Batch(job, batch_id), subtask, checkpoint_id - 1)
    load.calls.cleanup(job)
    load.server.execute("VACUUM")


def _group(load: Load) -> Figures:
    """Measures many group commits of 12 subtasks in few batches, without a cleanup."""
    groups, batches = load.sizes.groups_of_12, load.sizes.group_batches
    job = load.register("groups", 12 * groups)
    load.run_batch(job, 0, groups)
    before = load.server.sizes()
    for batch_id in range(1, 1 + batches):
        load.run_batch(job, batch_id, groups)
    grown = _grown(before, load.server.sizes(), groups * batches)
    return {"a group commit of 12 subtasks": grown}


def _grown(
    before: Mapping[str, TableSize], after: Mapping[str, TableSize], times: int
) -> dict[str, float]:
    """Returns by how much each table has grown, per batch or commit; the sums first."""
    figures = {"rows": 0.0, "bytes of rows": 0.0, "heap bytes": 0.0, "index bytes": 0.0}
    by_table: dict[str, float] = {}
    for name in sorted(after):
        old = asdict(before[name])
        grown = {k: (size - old[k]) / times for k, size in asdict(after[name]).items()}
        figures["rows"] += grown["rows"]
        figures["bytes of rows"] += grown["row_bytes"]
        figures["heap bytes"] += grown["heap_bytes"]
        figures["index bytes"] += grown["index_bytes"]
        if any(grown.values()):
            by_table[f"{name} rows"] = grown["rows"]
            by_table[f"{name} bytes"] = grown["heap_bytes"] + grown["index_bytes"]
    return {"bytes": figures["heap bytes"] + figures["index bytes"]} | figures | by_table


STEPS: dict[str, Callable[[Load], Figures]] = {
    "migrate": _migrate,
    "contention": _contention,
    "many-jobs": _many_jobs,
    "fill": _fill,
    "live": _live,
    "growth": _growth,
    "group": _group,
}


def main(argv: Sequence[str]) -> int:
    """Does one step for each line of stdin and prints its figures."""
    calls: type[Calls] = import_module(argv[0]).CatalogCalls
    found = Path(str(import_module("cairn").__file__)).resolve().parents[1]
    if found != Path(argv[1]).resolve():
        raise RuntimeError(f"cairn is imported from {found}, not from {argv[1]}")
    for line in sys.stdin:
        order = json.loads(line)
        load = Load(
            calls(order["url"]),
            Server(order["url"]),
            order["storage"],
            Sizes(**order["sizes"]),
            order["facts"],
        )
        print(json.dumps(STEPS[order["step"]](load)), flush=True)
        load.server.close()
        load.calls.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
