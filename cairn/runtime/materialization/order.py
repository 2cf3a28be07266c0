"""The orders to materialize subtasks: files in the executor's directory until they are done."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cairn.batch_ref import BatchRef
from cairn.runtime.executor.task_manager import TaskManager, fenced_if_removed, write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order to materialize one subtask.

    `now_ms` is the time of the batch that found it due, `ordered_s` that of this machine's
    monotonic clock, which all of its processes share. `size_bytes` is about what a restore of the
    subtask reads.
    """

    batch: BatchRef
    subtask: int
    now_ms: int
    ordered_s: float
    size_bytes: int = 0


def place(manager: TaskManager, order: Order) -> None:
    """Leaves an order for the executor's materializing process, instead of the subtask's last one.

    Raises:
        FencedError: a newer run has removed this run's directory.
    """
    write_whole(_file(manager, order.subtask), msgspec.msgpack.encode(order))


def is_placed(manager: TaskManager, subtask: int) -> bool:
    """Tells whether a subtask's order waits or is being carried out."""
    return _file(manager, subtask).exists()


def is_any_placed(manager: TaskManager) -> bool:
    """Tells whether an order is not done.

    Raises:
        FencedError: a newer run has removed this run's directory.
    """
    return bool(_files(manager))


def placed(manager: TaskManager) -> list[Order]:
    """Returns the orders that are not done, the oldest first.

    Raises:
        FencedError: a newer run has removed this run's directory.
    """
    with fenced_if_removed(_directory(manager)):
        data = [file.read_bytes() for file in _files(manager)]
    orders = [msgspec.msgpack.decode(one, type=Order) for one in data]
    return sorted(orders, key=lambda order: order.ordered_s)


def remove(manager: TaskManager, subtask: int) -> None:
    """Removes an order that is done."""
    _file(manager, subtask).unlink(missing_ok=True)


def _file(manager: TaskManager, subtask: int) -> Path:
    return _directory(manager) / str(subtask)


def _files(manager: TaskManager) -> list[Path]:
    directory = _directory(manager)
    with fenced_if_removed(directory):
        # The others are drafts.
        return [directory / name for name in os.listdir(directory) if name.isdecimal()]


def _directory(manager: TaskManager) -> Path:
    return manager.directory / "orders"
