"""Folds one key group of a given size in MB and prints the most memory, in KB, that it took."""

from __future__ import annotations

import random
import sys
import threading
from multiprocessing import get_context
from pathlib import Path

from cairn.handles import SegmentHandle, SegmentSpec
from cairn.keygroups import KeyGroupRange
from cairn.segments.base_writer import BaseWriter
from cairn.segments.fold import fold
from cairn.segments.format import encode
from cairn.segments.scratch import scratch_in
from cairn.state.entries import entry_prefix
from cairn.state.view import PUT, Changes
from cairn.storage import ObjectStore, open_store
from metastore.enums import SegmentKind

VALUE_BYTES = 1000
GROUP = KeyGroupRange(0, 1)


def anonymous_kb() -> int:
    """Returns the process's own memory now, without the pages of files."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0])


def base(store: ObjectStore, count: int) -> SegmentHandle:
    with scratch_in(None) as scratch:
        writer = BaseWriter({}, scratch=scratch)
        for first in range(0, count, 1000):
            numbers = range(first, min(count, first + 1000))
            keys = [entry_prefix(0, 1, b"%012d" % number) for number in numbers]
            writer.add(keys, [random.randbytes(VALUE_BYTES) for _ in keys])
        made = writer.finish(GROUP, 1)
        store.put("job/base.seg", made.pieces)
        return made.spec.at("job/base.seg")


def changelog(store: ObjectStore, count: int) -> list[SegmentHandle]:
    handles = []
    for checkpoint in range(10):
        keys = [entry_prefix(0, 1, b"%012d" % (n * 10 + checkpoint)) for n in range(count // 10)]
        values: list[bytes | None] = [random.randbytes(VALUE_BYTES) for _ in keys]
        data = encode(Changes([PUT] * len(keys), keys, values), metadata={})
        spec = SegmentSpec.of(
            data,
            kind=SegmentKind.CHANGELOG,
            key_groups=GROUP,
            entries=len(keys),
            checkpoint_id=checkpoint + 2,
        )
        store.put(f"job/{checkpoint}.seg", [data])
        handles.append(spec.at(f"job/{checkpoint}.seg"))
    return handles


def input_of(directory: Path, size_mb: int) -> list[SegmentHandle]:
    """Writes two thirds of the bytes as a base, and changes of one third."""
    count = (size_mb << 20) // VALUE_BYTES
    store = open_store((directory / "storage").as_uri())
    return [base(store, count * 2 // 3), *changelog(store, count // 3)]


def main(directory: Path, size_mb: int) -> None:
    # In a process of its own: memory that it took would be there for the fold to use.
    with get_context("spawn").Pool(1) as pool:
        handles = pool.apply(input_of, (directory, size_mb))
    store = open_store((directory / "storage").as_uri())
    most_kb, is_over = 0, threading.Event()

    def watch() -> None:
        nonlocal most_kb
        while not is_over.wait(0.01):
            most_kb = max(most_kb, anonymous_kb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    [made] = fold(store, handles, GROUP, job="clicks", subtask=0, as_of_checkpoint=12)
    is_over.set()
    watcher.join()
    assert made.spec.entries == handles[0].entries
    print(most_kb)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
