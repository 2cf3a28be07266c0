"""Which process the executor is, and whether it is still there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, told by its start from a later one that has the same id."""

    pid: int
    start_ticks: int


def identity_of(pid: int) -> ProcessIdentity | None:
    """Returns the identity of a running process; None if it has ended, or is not visible."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything.
    fields = stat.rpartition(b")")[2].split()
    has_ended = fields[0] in (b"Z", b"X")
    return None if has_ended else ProcessIdentity(pid, int(fields[19]))
