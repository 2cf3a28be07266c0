"""Reading local state whole now and then: what batches read of it is compared with nothing.

A base reads and compares all entries, but a large state that changes little gets one seldom. In
between, whoever materializes reads them all where that costs little beside the time since: at most
`SHARE` of one core for all subtasks of the job together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from cairn.catalog.job.materializations import Materialized
from cairn.runtime.executor.local_reader import LocalReader
from cairn.runtime.executor.private_files import disk_errors, write_private
from cairn.runtime.executor.subtask_context import SubtaskContext
from cairn.runtime.materialization.write import Compute
from metastore.enums import SegmentKind

SHARE = 0.01

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """When an environment was last read whole, by this boot's clock, and what that cost."""

    at_s: float
    cpu_s: float


def verify_if_due(
    context: SubtaskContext, reader: LocalReader, made: Materialized | None, compute: Compute
) -> None:
    """Compares all entries of a snapshot with what was written, if that is due.

    `made` is what was just written from the snapshot: bases have compared them already. It is due
    once the time since the last time is long enough for `SHARE`.

    Raises:
        DamagedStateError: they differ.
    """
    now_s, file = time.monotonic(), _file(context.directory)
    last = _read(file)
    if made is not None and made.kind is SegmentKind.KEYED_FULL:
        # What it cost is not known here, and nearly all of it is encoding.
        _write(file, Verified(at_s=now_s, cpu_s=last.cpu_s if last else 0.0))
        return
    if last is not None:
        pause_s = last.cpu_s * context.run.parallelism / SHARE
        if now_s - last.at_s < pause_s:
            return
    spent_s: list[float] = []
    for _ in compute(_verifying(reader, spent_s)):
        pass
    _write(file, Verified(at_s=now_s, cpu_s=sum(spent_s)))
    facts = {"job": context.run.job, "subtask": context.subtask, "cpu_s": round(sum(spent_s), 3)}
    _log.info("local state compared with what was written", extra=facts)


def _verifying(reader: LocalReader, spent_s: list[float]) -> Iterator[T]:
    """Yields nothing: a generator, so that `compute` decides which thread does the work."""
    began_s = time.thread_time()
    reader.verify()
    spent_s.append(time.thread_time() - began_s)
    yield from ()


def _file(directory: Path) -> Path:
    # Within the environment's directory, so that it is deleted with it.
    return directory / "verified"


def _read(file: Path) -> Verified | None:
    try:
        return msgspec.msgpack.decode(file.read_bytes(), type=Verified)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None  # killed while it was written: as good as never


def _write(file: Path, verified: Verified) -> None:
    # Thrown away by another process meanwhile: then it is read anew anyway.
    with suppress(FileNotFoundError), disk_errors("local state cannot be written to", file):
        write_private(file, msgspec.msgpack.encode(verified))
