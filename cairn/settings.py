"""Options of a job: keys, defaults and ranges. Flink's names where Flink has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

import platformdirs

from cairn.errors import BadInputError, did_you_mean
from cairn.keygroups import MAX_PARALLELISM
from cairn.printable import is_printable
from cairn.units import parse_duration_ms, parse_size_bytes
from metastore.enums import MaterializedBy

ADAPTIVE = "adaptive"
"""The value of what Cairn finds out by itself."""

FILE_RETENTION_MS = 3_600_000
"""A metastore that is restored from a backup of the last hour finds all objects that it needs."""

MATERIALIZE_INTERVAL_MS = 600_000
HISTORY_RETENTION_MS = 7 * 86_400_000
HISTORY_MAX_CHECKPOINTS = 500_000
"""So that the metastore of a job with a batch a second stays small (docs/sizing.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The validated options of one job."""

    max_parallelism: int | None = None
    """None: as the job has it; a new one by its parallelism."""
    num_retained: int = 3
    file_retention_ms: int = FILE_RETENTION_MS
    history_retention_ms: int = HISTORY_RETENTION_MS
    history_max_checkpoints: int = HISTORY_MAX_CHECKPOINTS
    manifest_interval: int | None = None
    """In checkpoints; 0: none; None: adaptive."""
    materialize_enabled: bool = True
    materialize_interval_ms: int = MATERIALIZE_INTERVAL_MS
    materialized_by: MaterializedBy = MaterializedBy.STREAM
    materialize_anyway_ms: int = 3_600_000
    """Where the maintenance materializes, how old bases get before the stream does it itself."""
    materialize_max_failures: int = 3
    preemptive_persist_bytes: int = 5 << 20
    persist_delay_ms: int = 100
    persist_size_bytes: int = 10 << 20
    merging_enabled: bool = True
    merges_across_checkpoints: bool = False
    max_file_bytes: int = 32 << 20
    pool_blocking: bool = False
    max_file_pool_size: int = 4
    max_subtasks_per_file: int = 0
    upload_threads: int = 5
    upload_in_flight_bytes: int = 100 << 20
    upload_retry_policy: str = "fixed"
    upload_timeout_ms: int | None = None
    """None: adaptive."""
    upload_max_attempts: int = 3
    upload_next_attempt_delay_ms: int = 500
    heartbeat_enabled: bool = False
    task_memory_bytes: int = 128 << 20
    metastore_timeout_ms: int = 60_000
    local_dir: str = ""
    """Empty: the cache directory of whoever asks for `local_directory`."""

    @property
    def local_directory(self) -> Path:
        """The directory for local state on this machine; ask on the executor, not on the driver."""
        return Path(self.local_dir or platformdirs.user_cache_dir("cairn"))

    @property
    def materializer(self) -> MaterializedBy:
        """Who materializes the job; the maintenance does not where nobody is to."""
        return self.materialized_by if self.materialize_enabled else MaterializedBy.STREAM

    @property
    def is_left_to_maintenance(self) -> bool:
        """Whether the stream materializes only where the maintenance is late."""
        return self.materializer is MaterializedBy.MAINTENANCE

    @property
    def merges_files_across(self) -> bool:
        """Whether files are continued over checkpoints: merging is on, and across boundaries."""
        return self.merging_enabled and self.merges_across_checkpoints

    @property
    def open_file_bytes(self) -> int | None:
        """The size from which on a file is not continued any more; None: no file is continued."""
        return self.max_file_bytes if self.merges_files_across else None

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> Settings:
        """Returns settings from `cairn.…` keys.

        Raises:
            BadInputError: a key is unknown or a value is out of its range; the message names the
                key, the value and what is allowed.
        """
        values: dict[str, object] = {}
        for key, value in options.items():
            if key not in OPTIONS:
                known = "\n  ".join(sorted(OPTIONS))
                raise BadInputError(
                    f"unknown option {key!r}; {did_you_mean(key, OPTIONS)}options are:\n  {known}"
                )
            field, parse, allowed = OPTIONS[key]
            try:
                values[field] = parse(value)
            except (TypeError, ValueError) as error:
                raise BadInputError(f"option {key} is {value!r}; allowed: {allowed}") from error
        return cls(**values)  # type: ignore[arg-type]


def _size_bytes(lowest_bytes: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        size_bytes = parse_size_bytes(value)
        if size_bytes < lowest_bytes:
            raise ValueError(size_bytes)
        return size_bytes

    return parse


def _whole(lowest: int, highest: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        # True is 1 to Python; as a number of anything it is a mistake.
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise TypeError(value)
        number = int(value)
        if not lowest <= number <= highest:
            raise ValueError(number)
        return number

    return parse


def _duration_ms(lowest_ms: int, highest_ms: float = inf) -> Callable[[object], int]:
    def parse(value: object) -> int:
        duration_ms = parse_duration_ms(value)
        if not lowest_ms <= duration_ms <= highest_ms:
            raise ValueError(duration_ms)
        return duration_ms

    return parse


def _adaptive_or(parse: Callable[[object], int]) -> Callable[[object], int | None]:
    return lambda value: None if value == ADAPTIVE else parse(value)


def _one_of(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in words:
            raise ValueError(value)
        return str(value)

    return parse


def _switch(value: object) -> bool:
    words = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() in words:
        return words[str(value).lower()]
    raise ValueError(value)


def _directory(value: object) -> str:
    if not isinstance(value, str | Path) or not str(value) or not is_printable(str(value)):
        raise TypeError(value)
    # Now: tasks have another working directory.
    return str(Path(value).expanduser().absolute())


_DURATION = "a duration such as '500 ms', '10 s', '5 min'"
_SIZE = "a size such as '64 mb', '1 gb'"

OPTIONS: dict[str, tuple[str, Callable[[object], object], str]] = {
    "cairn.max-parallelism": (
        "max_parallelism",
        _whole(1, MAX_PARALLELISM),
        f"1 to {MAX_PARALLELISM}",
    ),
    "cairn.num-retained": ("num_retained", _whole(2, 10_000), "2 to 10000"),
    "cairn.file-retention": (
        "file_retention_ms",
        _duration_ms(0, 3650 * 86_400_000),
        f"{_DURATION}, at most 3650 d",
    ),
    "cairn.history-retention": (
        "history_retention_ms",
        _duration_ms(3_600_000),
        f"{_DURATION}, at least 1 h",
    ),
    "cairn.history-max-checkpoints": (
        "history_max_checkpoints",
        _whole(1000, 1_000_000_000),
        "1000 to 1000000000",
    ),
    "cairn.manifest-interval": (
        "manifest_interval",
        _adaptive_or(_whole(0, 1_000_000)),
        f"{ADAPTIVE} or 0 to 1000000",
    ),
    "cairn.changelog.periodic-materialize.enabled": (
        "materialize_enabled",
        _switch,
        "true or false",
    ),
    "cairn.changelog.periodic-materialize.interval": (
        "materialize_interval_ms",
        _duration_ms(1),
        f"{_DURATION}, at least 1 ms",
    ),
    "cairn.changelog.periodic-materialize.by": (
        "materialized_by",
        lambda value: MaterializedBy(_one_of(*MaterializedBy)(value)),
        " or ".join(MaterializedBy),
    ),
    "cairn.changelog.periodic-materialize.anyway-after": (
        "materialize_anyway_ms",
        _duration_ms(1),
        f"{_DURATION}, at least 1 ms",
    ),
    "cairn.changelog.max-failures-allowed": (
        "materialize_max_failures",
        _whole(1, 1000),
        "1 to 1000",
    ),
    "cairn.changelog.dstl.preemptive-persist-threshold": (
        "preemptive_persist_bytes",
        _size_bytes(1 << 10),
        f"{_SIZE}, at least 1 kb",
    ),
    "cairn.changelog.dstl.batch.persist-delay": ("persist_delay_ms", _duration_ms(0), _DURATION),
    "cairn.changelog.dstl.batch.persist-size-threshold": (
        "persist_size_bytes",
        _size_bytes(1 << 10),
        f"{_SIZE}, at least 1 kb",
    ),
    "cairn.file-merging.enabled": ("merging_enabled", _switch, "true or false"),
    "cairn.file-merging.across-checkpoint-boundary": (
        "merges_across_checkpoints",
        _switch,
        "true or false",
    ),
    "cairn.file-merging.max-file-size": (
        "max_file_bytes",
        _size_bytes(1 << 10),
        "a size such as '64 mb', '1 gb', at least 1 kb",
    ),
    "cairn.file-merging.pool-blocking": ("pool_blocking", _switch, "true or false"),
    "cairn.file-merging.max-file-pool-size": ("max_file_pool_size", _whole(1, 1000), "1 to 1000"),
    "cairn.file-merging.max-subtasks-per-file": (
        "max_subtasks_per_file",
        _whole(0, 32768),
        "0 to 32768",
    ),
    "cairn.changelog.dstl.upload.num-threads": ("upload_threads", _whole(1, 100), "1 to 100"),
    "cairn.changelog.dstl.upload.max-in-flight": (
        "upload_in_flight_bytes",
        _size_bytes(1 << 10),
        f"{_SIZE}, at least 1 kb",
    ),
    "cairn.changelog.dstl.upload.retry-policy": (
        "upload_retry_policy",
        _one_of("fixed", "none"),
        "fixed or none",
    ),
    "cairn.changelog.dstl.upload.timeout": (
        "upload_timeout_ms",
        _adaptive_or(_duration_ms(1)),
        f"{ADAPTIVE} or {_DURATION}, at least 1 ms",
    ),
    "cairn.changelog.dstl.upload.max-attempts": ("upload_max_attempts", _whole(1, 100), "1 to 100"),
    "cairn.changelog.dstl.upload.next-attempt-delay": (
        "upload_next_attempt_delay_ms",
        _duration_ms(0),
        _DURATION,
    ),
    "cairn.heartbeat.enabled": ("heartbeat_enabled", _switch, "true or false"),
    "cairn.task.memory-size": (
        "task_memory_bytes",
        _size_bytes(1 << 10),
        f"{_SIZE}, at least 1 kb",
    ),
    "cairn.metastore.timeout": (
        "metastore_timeout_ms",
        _duration_ms(1000),
        f"{_DURATION}, at least 1 s",
    ),
    "cairn.local-dir": ("local_dir", _directory, "a directory path"),
}
