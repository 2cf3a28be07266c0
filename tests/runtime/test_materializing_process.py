"""Which thread of a materialising process does what, and what it loads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from cairn.errors import StorageError
from cairn.runtime import materialize
from cairn.runtime.local_store import LocalStore
from cairn.runtime.materializer import Order, carry_out
from cairn.runtime.materializing_process import drawn_in
from tests.runtime.streams import ROOT
from tests.runtime.tasks import QUERY, Task, new_run, remember, remember_big

COMPUTING = ("_all_of", "read_segments", "net_changes", "_encode")
"""What costs the processor much, by its names in `cairn.runtime.materialize`."""


class Noted:
    """In which threads things were done."""

    def __init__(self) -> None:
        self.threads: dict[str, set[int]] = defaultdict(set)

    def by(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            self.threads[what].add(threading.get_ident())
            return call(*args, **kwargs)

        return noting


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Noted]:
    """Notes who computes, and who takes locks: of the metastore's rows and of local state."""
    noted = Noted()
    for name in COMPUTING:
        monkeypatch.setattr(materialize, name, noted.by("compute", getattr(materialize, name)))
    monkeypatch.setattr(LocalStore, "write", noted.by("lock", LocalStore.write))
    on_statement = noted.by("lock", lambda *_: None)
    event.listen(Engine, "before_cursor_execute", on_statement)
    yield noted
    event.remove(Engine, "before_cursor_execute", on_statement)


def test_whoever_takes_a_lock_that_batches_may_wait_for_does_not_compute(
    noted: Noted, metastore_url: str, tmp_storage: str, tmp_path: Path
) -> None:
    plan = new_run(metastore_url, tmp_storage, str(tmp_path / "local"), parallelism=1)
    with ThreadPoolExecutor(1) as thread:
        computing = thread.submit(threading.get_ident).result()
        for batch_id, write in enumerate([remember_big(0), *map(remember, range(1, 4))]):
            Task(plan, "one", batch_id, 0, batch_id, write).run()
            if batch_id % 2:
                noted.threads.clear()
                order = Order(plan, "one", plan.batch(QUERY, batch_id), 0, batch_id)
                carry_out(order, partial(drawn_in, thread))
                locking = threading.get_ident()
                assert noted.threads == {"compute": {computing}, "lock": {locking}}


def test_an_error_of_the_computing_thread_is_the_materialisations() -> None:
    def failing() -> Iterator[str]:
        yield "a segment"
        raise StorageError("a changelog is gone")

    with ThreadPoolExecutor(1) as thread:
        drawn = drawn_in(thread, failing())
        assert next(drawn) == "a segment"
        with pytest.raises(StorageError, match="a changelog is gone"):
            next(drawn)


def test_a_materialising_process_starts_without_spark() -> None:
    program = "import sys, cairn.runtime.materializer; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_it_starts_without_what_its_other_thread_is_to_load() -> None:
    program = (
        "import sys, cairn.runtime.materializing_process;"
        "sys.exit('sqlalchemy' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
