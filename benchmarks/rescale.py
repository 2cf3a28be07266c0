"""`make bench-rescale`: what the subtasks of a new parallelism read of the state of the old one.

python -m benchmarks.rescale [--size-mb N] [--entry-bytes N] [--changes 1:8 …] [--json]

A history of batches is written at one parallelism, materialized by the rules of the default
options. Then a run at another parallelism begins, and each of its subtasks restores its parent's
state into empty local state, by the code that a Spark task runs. Bytes and requests are counted at
the store: with an executor for each subtask, and with one for all.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import positive, workplace
from benchmarks.restore_history import (
    KEY_SCHEMA,
    MATERIALIZED,
    QUERY,
    History,
    digest_of,
    write_history,
)
from benchmarks.restore_local import CountingStore, WrongStateError
from benchmarks.restore_rows import Shape
from cairn.catalog.catalog import Catalog
from cairn.catalog.embedded import resolve_url
from cairn.catalog.job.runs import Registration, register_run
from cairn.catalog.migrate import migrate
from cairn.errors import CairnError
from cairn.runtime.executor.parent_state import parent_state
from cairn.runtime.executor.run_context import RunContext
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.executor.task_manager import TaskManager
from cairn.state.times import TimeMode
from cairn.storage import open_store

CHANGES = ((1, 8), (8, 1), (8, 12), (12, 5))
MOST_READ = 1.3
"""Bytes that all subtasks together may read, as a multiple of the state's in storage."""
_MB = 1_000_000
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaled:
    """What all subtasks read of a state of `state_bytes` in storage, in `segments` segments.

    `seconds` is the sum over the subtasks, which restore one after the other.
    """

    before: int
    after: int
    executors: int
    state_bytes: int
    segments: int
    read_bytes: int
    requests: int
    seconds: float

    @property
    def share(self) -> float:
        """How many times the state's bytes were read."""
        return self.read_bytes / self.state_bytes


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 1 if some state is wrong, or more was read than may be."""
    args = _arguments(argv)
    told = Console(stderr=True, highlight=False)
    try:
        with workplace(args.output / "work-rescale") as (work, metastore):
            url = resolve_url(metastore)
            migrate(Catalog(url))
            shape = Shape.of(args.size_mb * _MB, args.entry_bytes)
            found = measure(shape, args.changes, work, url)
    except (CairnError, WrongStateError) as error:
        told.print(f"error: {error}", style="red", markup=False)
        return 1
    text = json.dumps([asdict(one) | {"share": one.share} for one in found], indent=2) + "\n"
    (args.output / "rescale.json").write_text(text)
    if args.json:
        sys.stdout.write(text)
    else:
        Console(width=max(100, Console().width)).print(_table(found))
    return 0 if all(one.share <= MOST_READ for one in found) else 1


def measure(
    shape: Shape, changes: Iterable[tuple[int, int]], work: Path, metastore_url: str
) -> list[Rescaled]:
    """Writes the histories, and measures each change of parallelism.

    Raises:
        WrongStateError: the subtasks' states are not the one that was written.
    """
    histories: dict[int, History] = {}
    found: list[Rescaled] = []
    for before, after in changes:
        if before not in histories:
            histories[before] = write_history(
                MATERIALIZED, shape, before, work / str(before), metastore_url, job=f"from-{before}"
            )
        for executors in sorted({1, after}):
            found.append(rescale(histories[before], after, executors, work / "local"))
    return found


def rescale(history: History, after: int, executors: int, local_directory: Path) -> Rescaled:
    """Restores a history's state at another parallelism, and checks it.

    Raises:
        WrongStateError: see `measure`.
    """
    settings = replace(history.plan.settings, local_dir=str(local_directory))
    plan = replace(_next_run(history.plan, after), settings=settings)
    batch = plan.batch(QUERY, history.next_batch)
    store = CountingStore(open_store(plan.storage))
    entries = digest = 0
    seconds = 0.0
    for subtask in range(after):
        # An executor's subtasks are neighbours.
        manager = TaskManager(plan, f"executor-{subtask * executors // after}")
        context = SubtaskContext(manager=manager, store=store, batch=batch, subtask=subtask)
        start = manager.begin(batch)
        began_s = time.monotonic()
        with parent_state(context, start) as reader:
            seconds += time.monotonic() - began_s
            for key, value in reader.range(plan.key_groups(subtask)):
                entries += 1
                digest = digest + digest_of(key, value) & _MASK
    shutil.rmtree(local_directory)
    if (entries, digest) != (history.entries, history.digest):
        raise WrongStateError(
            f"{history.plan.parallelism} to {after}: restored {entries} entries with digest "
            f"{digest:x}, written were {history.entries} with {history.digest:x}"
        )
    reads = store.reads()
    return Rescaled(
        before=history.plan.parallelism,
        after=after,
        executors=executors,
        state_bytes=sum(history.holds.size_bytes.values()),
        segments=sum(history.holds.segments.values()),
        read_bytes=reads.size_bytes,
        requests=reads.requests,
        seconds=seconds,
    )


def _next_run(plan: RunContext, parallelism: int) -> RunContext:
    registration = Registration(
        run_id=uuid.uuid4(),
        job=plan.job,
        storage=plan.storage,
        parallelism=parallelism,
        max_parallelism=plan.max_parallelism,
        num_retained=plan.settings.num_retained,
        file_retention_ms=plan.settings.file_retention_ms,
        key_schema=KEY_SCHEMA,
        states=(),
        time_mode=TimeMode.NONE.value,
    )
    run = plan.catalog.run("registering a run", lambda c: register_run(c, registration))
    return replace(
        plan,
        run_id=str(registration.run_id),
        epoch=run.epoch,
        parallelism=parallelism,
        tasks=parallelism,
    )


def _table(found: Iterable[Rescaled]) -> Table:
    names = (
        "parallelism",
        "executors",
        "state MB",
        "segments",
        "read MB",
        "times",
        "requests",
        "s",
    )
    table = Table(*names, title="What the subtasks of another parallelism read")
    for one in found:
        table.add_row(
            f"{one.before} → {one.after}",
            str(one.executors),
            f"{one.state_bytes / _MB:.1f}",
            str(one.segments),
            f"{one.read_bytes / _MB:.1f}",
            f"{one.share:.2f}",
            str(one.requests),
            f"{one.seconds:.2f}",
        )
    return table


def _change(text: str) -> tuple[int, int]:
    before, _, after = text.partition(":")
    return positive(before), positive(after)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rescale", description=(__doc__ or "").splitlines()[0]
    )
    numbers = {
        "--size-mb": (100, "bytes of all keys and values, in millions"),
        "--entry-bytes": (200, "of one key and its value"),
    }
    for name, (default, what) in numbers.items():
        about = f"{what}; default: %(default)s"
        parser.add_argument(name, type=positive, default=default, metavar="N", help=about)
    parser.add_argument(
        "--changes",
        type=_change,
        nargs="+",
        default=CHANGES,
        metavar="P:P",
        help="parallelism before and after; default: 1:8 8:1 8:12 12:5",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), help="directory; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON, not the table")
    args = parser.parse_args(argv)
    if args.entry_bytes < 100:
        parser.error("an entry has at least 100 bytes")
    return args


if __name__ == "__main__":
    sys.exit(main())
