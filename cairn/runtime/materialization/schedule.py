"""When a subtask is due, and its order then, which the batch does not wait for."""

from __future__ import annotations

import time
from bisect import bisect_right
from functools import partial

from cairn.catalog.job.batch_start import Clock
from cairn.runtime.executor.local_record import Weight
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.materialization.order import Order, is_placed, place
from cairn.runtime.materialization.progress import progress_of, raise_if_given_up
from cairn.runtime.materialization.start import start_unless_there
from cairn.runtime.materialization.write import FULL_FROM_SHARE
from cairn.settings import Settings

LIGHT_BYTES = 64 << 20
"""Bytes that a restore may read on top of bases of any size without an early materialization."""
TIMES_AS_OFTEN = 10
"""As the interval says, a subtask is materialized where more than `FULL_FROM_SHARE` is on top."""


def is_due(clock: Clock, last_ms: int, *, subtask: int, parallelism: int, interval_ms: int) -> bool:
    """Tells whether a tick of the subtask's own phase has passed since its last materialization.

    Each subtask ticks once per interval, `1/parallelism` of it after the one before, so that
    materializations stay spread over subtasks whatever restarts. `last_ms` is 0 before the first.
    """
    phase_ms = interval_ms * subtask // parallelism
    last_ms = max(last_ms, clock.job_created_ms)
    return (clock.now_ms - phase_ms) // interval_ms > (last_ms - phase_ms) // interval_ms


def interval_ms(settings: Settings, weight: Weight) -> int:
    """Returns how often a subtask is due: more often where a restore would read too much."""
    most_bytes = max(LIGHT_BYTES, FULL_FROM_SHARE * weight.base_bytes)
    times = TIMES_AS_OFTEN if weight.change_bytes > most_bytes else 1
    return max(1, settings.materialize_interval_ms // times)


def is_left_too_long(
    clock: Clock, last_ms: int, *, subtask: int, parallelism: int, settings: Settings
) -> bool:
    """Tells whether the maintenance should have materialized a subtask long ago.

    That is `cairn.changelog.periodic-materialize.anyway-after`, and up to one interval more: where
    the platform is away, subtasks do it one after the other and not all in one batch.
    """
    later_ms = settings.materialize_interval_ms * subtask // parallelism
    last_ms = max(last_ms, clock.job_created_ms)
    return clock.now_ms - last_ms > settings.materialize_anyway_ms + later_ms


def _base_made_ms(clock: Clock, context: SubtaskContext) -> int:
    """Returns when the newest base or increment of the subtask was made; 0: there is none."""
    start = context.key_groups.start
    if not context.run.settings.is_left_to_maintenance:
        return clock.base_made_ms.get(start, 0)
    # After a restart with another parallelism, its first key group is inside of an older base.
    starts = sorted(clock.base_made_ms)
    before = bisect_right(starts, start)
    return clock.base_made_ms[starts[before - 1]] if before else 0


def order_if_due(context: SubtaskContext, clock: Clock, weight: Weight) -> None:
    """Orders the materialization of a subtask, if that is due and not ordered already.

    Whoever is due also starts the executor's materializing process, where there is none: so orders
    that a dead one has left are done, too. `weight` is that of the subtask's local state.

    Raises:
        StorageError: it has failed `cairn.changelog.max-failures-allowed` times in a row, or the
            process has that often ended before it took an order. A restart counts from the start.
        RefusedError: it has failed in a way that trying again cannot mend; so does every attempt
            until a restart.
        FencedError: a newer run has removed this run's directory.
    """
    manager, subtask, settings = context.manager, context.subtask, context.settings
    parallelism = context.run.parallelism
    is_due_since = partial(
        is_due,
        clock,
        subtask=subtask,
        parallelism=parallelism,
        interval_ms=interval_ms(settings, weight),
    )
    if settings.is_left_to_maintenance:
        is_due_since = partial(
            is_left_too_long, clock, subtask=subtask, parallelism=parallelism, settings=settings
        )
    base_ms = _base_made_ms(clock, context)
    if not settings.materialize_enabled or not is_due_since(base_ms):
        return
    # While an order is there, failures are not yet known: the one under way is counted already.
    if not is_placed(manager, subtask):
        progress = progress_of(manager, subtask)
        raise_if_given_up(manager, subtask, progress)
        # One that began before this batch may have ended since.
        if not is_due_since(progress.done_ms):
            return
        order = Order(
            batch=context.batch,
            subtask=subtask,
            now_ms=clock.now_ms,
            ordered_s=time.monotonic(),
            size_bytes=weight.base_bytes + weight.change_bytes,
        )
        place(manager, order)
    start_unless_there(manager)
