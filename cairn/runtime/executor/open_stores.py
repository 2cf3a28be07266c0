"""The environments that a process has open: each once, those in use, and not too many."""

from __future__ import annotations

import os
import resource
import time
from collections import OrderedDict
from pathlib import Path

from cairn.runtime.executor.local_store import LocalStore

IDLE_S = 600.0
"""An environment that was not used for so long is closed: its subtask has left the executor."""
_MOST = 512
"""Each has 64 GB of address space, of which a process has 128 TB."""
_LEAST = 8
_DESCRIPTORS = 3
"""Of each environment."""
_OTHER_DESCRIPTORS = 256
"""Those of Spark, boto3 and the metastore: of the usual 1,024, enough are left for 200 subtasks."""

_open: OrderedDict[tuple[int, Path], LocalStore] = OrderedDict()


def open_local(directory: Path, reader: str = "task") -> LocalStore:
    """Returns this process's store on a directory: LMDB forbids opening one twice.

    Others may be closed for it, those that were used least recently first.
    """
    key = (os.getpid(), directory)
    store = _open.pop(key, None)
    if store is not None and not store.is_current:
        _close(key, store)
        store = None
    _close_some()
    if store is None:
        store = LocalStore(directory, reader)
    _open[key] = store
    return store


def close_all() -> None:
    """Closes all that is not in use."""
    while _open:
        _close(*_open.popitem())


def most_open() -> int:
    """Returns how many environments a process keeps open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST
    return min(_MOST, max(_LEAST, (limit - _OTHER_DESCRIPTORS) // _DESCRIPTORS))


def _close_some() -> None:
    """Closes environments that are idle for long, and others until one more may be opened."""
    too_many = len(_open) + 1 - most_open()
    oldest = next(iter(_open.values()), None)
    if oldest is None or not (too_many > 0 or _is_idle(oldest)):
        return
    for key, store in list(_open.items()):
        if not store.is_in_use and (too_many > 0 or _is_idle(store)):
            _close(key, _open.pop(key))
            too_many -= 1


def _is_idle(store: LocalStore) -> bool:
    return time.monotonic() - store.used_s > IDLE_S


def _close(key: tuple[int, Path], store: LocalStore) -> None:
    # One in use, and one of the process that this one was forked from, go with their last
    # reference.
    if key[0] == os.getpid() and not store.is_in_use:
        store.close()
