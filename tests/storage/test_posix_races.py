"""Puts on a directory beside a cleanup that removes it, and with answers that a network loses."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cairn.errors import RefusedError
from cairn.storage import open_store

PATH = "job-1/taskmanager-owned/tm/a.seg"


def test_a_put_finds_its_directory_again_that_a_cleanup_removes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cleaner = open_store(str(tmp_path)), open_store(str(tmp_path))
    mkdir = Path.mkdir
    removed: list[bool] = []

    def mkdir_and_lose(self: Path, *args: Any, **options: Any) -> None:
        mkdir(self, *args, **options)
        if not removed and self == (tmp_path / PATH).parent:
            removed.append(cleaner.remove_directory(os.path.dirname(PATH)))

    monkeypatch.setattr(Path, "mkdir", mkdir_and_lose)
    store.put(PATH, [b"x"])
    assert removed == [True]
    assert store.get(PATH) == b"x"


def test_puts_beside_a_remover_that_never_rests_all_succeed(tmp_path: Path) -> None:
    store, done = open_store(str(tmp_path)), threading.Event()

    def remove() -> None:
        while not done.is_set():
            store.remove_directory("job-1/shared")

    with ThreadPoolExecutor() as pool:
        remover = pool.submit(remove)
        try:
            for number in range(50):
                store.put(f"job-1/shared/{number}.seg", [b"x"])
                os.unlink(tmp_path / f"job-1/shared/{number}.seg")
        finally:
            done.set()
        remover.result()


def test_a_link_whose_answer_was_lost_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS the request is sent again then, and finds its own work."""
    real = os.link

    def lost(*arguments: Any, **more: Any) -> None:
        real(*arguments, **more)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", lost)
    store = open_store(str(tmp_path))
    store.put(PATH, [b"mine"])
    assert store.get(PATH) == b"mine"
    monkeypatch.undo()
    with pytest.raises(RefusedError, match="already has an object"):
        store.put(PATH, [b"another"])
