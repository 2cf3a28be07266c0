"""Which thread of a materializing process does what, and what it loads."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from cairn.catalog.catalog import Catalog
from cairn.errors import StorageError
from cairn.runtime.executor.local_reader import LocalReader
from cairn.runtime.executor.local_store import LocalStore
from cairn.runtime.executor.task_manager import TaskManager
from cairn.runtime.materialization.carry_out import carry_out
from cairn.runtime.materialization.increment import net_changes
from cairn.runtime.materialization.order import Order
from cairn.runtime.materialization.process import computed_in
from cairn.segments.format import encode
from cairn.segments.reader import read_segments
from tests.runtime.tasks import QUERY, Task, new_run, remember, remember_big
from tests.streams.streams import ROOT

COMPUTING = (read_segments, net_changes, encode, LocalReader.range)
LOCKING = (Catalog.run, LocalStore.write)
"""Of the metastore's rows, and of local state."""


def noted(functions: Iterable[Callable[..., Any]], what: str) -> dict[CodeType, str]:
    return {inspect.unwrap(function).__code__: what for function in functions}


def test_whoever_takes_a_lock_that_batches_may_wait_for_does_not_compute(
    metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    plan = new_run(metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=1)
    looked_for = noted(COMPUTING, "compute") | noted(LOCKING, "lock")
    threads: dict[str, set[int]] = defaultdict(set)
    seen: set[CodeType] = set()

    def note(frame: FrameType, _event: str, _value: object) -> None:
        if (what := looked_for.get(frame.f_code)) is not None:
            threads[what].add(threading.get_ident())
            seen.add(frame.f_code)

    with ThreadPoolExecutor(1, initializer=sys.setprofile, initargs=(note,)) as thread:
        computing = thread.submit(threading.get_ident).result()
        for batch_id, write in enumerate([remember_big(0), *map(remember, range(1, 4))]):
            Task(plan, "one", batch_id, 0, batch_id, write).run()
            if batch_id % 2:
                threads.clear()
                batch = plan.batch(QUERY, batch_id)
                order = Order(batch=batch, subtask=0, now_ms=batch_id, ordered_s=0)
                sys.setprofile(note)
                try:
                    carry_out(TaskManager(plan, "one"), order, partial(computed_in, thread))
                finally:
                    sys.setprofile(None)
                assert threads == {"compute": {computing}, "lock": {threading.get_ident()}}
    assert seen == looked_for.keys(), "both a full one and an increment were made"


def test_an_error_of_the_computing_thread_is_the_materializations() -> None:
    def failing() -> Iterator[str]:
        yield "a segment"
        raise StorageError("a changelog is gone")

    with ThreadPoolExecutor(1) as thread:
        drawn = computed_in(thread, failing())
        assert next(drawn) == "a segment"
        with pytest.raises(StorageError, match="a changelog is gone"):
            next(drawn)


def test_a_materializing_process_starts_without_spark() -> None:
    program = "import sys, cairn.runtime.materialization.serve; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_it_starts_without_what_its_other_thread_is_to_load() -> None:
    program = (
        "import sys, cairn.runtime.materialization.process;"
        "sys.exit('sqlalchemy' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
