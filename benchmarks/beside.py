"""The maintenance of one job in a process of its own, again and again, beside the job's stream."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from cairn.catalog.catalog import Catalog
from cairn.maintenance.actions import apply_plan, plan_action
from cairn.maintenance.cleanup import cleanup_job
from cairn.maintenance.sweep import sweep_job
from metastore.enums import MaintenanceAction

_PAUSE_S = 0.5
_LONGEST_S = 60


@contextmanager
def maintained(url: str, job: str) -> Iterator[Callable[[], dict[str, float]]]:
    """Maintains a job meanwhile; what it yields returns how much was done, once it is over.

    That is how often each action was, and `cpu_s`.
    """
    context = multiprocessing.get_context("spawn")
    is_over, answers = context.Event(), context.SimpleQueue()
    process = context.Process(target=_maintain, args=(url, job, is_over, answers.put))
    process.start()
    done: dict[str, float] = {}
    try:
        yield lambda: done
    finally:
        is_over.set()
        process.join(_LONGEST_S)
        if process.exitcode != 0:
            process.kill()
            raise RuntimeError(f"the maintenance of {job} ended with {process.exitcode}")
        done.update(answers.get())


def _maintain(
    url: str, job: str, is_over: Event, answer: Callable[[dict[str, float]], None]
) -> None:
    # As if it were on another machine: here it has only what the stream leaves of the cores. What
    # it asks of the metastore and of the store competes with the stream all the same.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    catalog, began_s = Catalog(url), time.process_time()
    done = {"folds": 0.0, "compactions": 0.0, "cleanups": 0.0, "sweeps": 0.0}
    while not is_over.wait(_PAUSE_S):
        done["folds"] += _act(catalog, MaintenanceAction.MATERIALIZATION, job)
        done["compactions"] += _act(catalog, MaintenanceAction.COMPACTION, job)
        cleanup_job(catalog, job)
        sweep_job(catalog, job, dry_run=True)
        done["cleanups"] += 1
        done["sweeps"] += 1
    answer(done | {"cpu_s": time.process_time() - began_s})


def _act(catalog: Catalog, action: MaintenanceAction, job: str) -> bool:
    plan = plan_action(catalog, action, job)
    if plan is not None:
        apply_plan(catalog, plan.run_id)
    return plan is not None
