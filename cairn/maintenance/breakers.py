"""Circuit breakers: what about a plan is so unusual that a person has to look before it is applied.

Pure functions. A plan is right by the rows that it was made from; a breaker speaks when these rows,
a listing or a clock are not to be believed. The limits are those of the process that maintains, in
its environment: not the job's, whose rows others write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from cairn.errors import BadInputError
from cairn.units import parse_size_bytes
from metastore.enums import MaintenanceAction


class Breaker(StrEnum):
    """What can speak, by the word with which a person passes it."""

    EMPTY_LIVE_SET = "empty-live-set"
    """Nothing would be left, although something has to be."""
    SHARE = "share"
    """More than a share of what there is would be deleted."""
    BYTES = "bytes"
    """More bytes would be deleted in an hour than ever should."""
    MATCH_RATE = "match-rate"
    """Few of the listed objects have rows: it may be another job's root, or another spelling."""
    FAILED_PAGE = "failed-page"
    """A page of a listing failed, so what it lacks may be there."""
    CLOCK = "clock"
    """The database's clock is behind what it has said before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDeletes:
    """What a plan deletes, against what there is.

    `recent_bytes` are those of plans that were applied within an hour. `left_files` are what stays,
    counted up to `counted_files` more than it needs to be. `must_leave` says that something has to
    stay. Of what was listed, `matched_objects` have a row. `clock_behind_ms` is how far the
    database's clock is behind a moment that it has noted.
    """

    files: int
    size_bytes: int
    recent_bytes: int = 0
    left_files: int = 0
    must_leave: bool = False
    listed_objects: int = 0
    matched_objects: int = 0
    failed_pages: int = 0
    clock_behind_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From where on a breaker speaks; see docs/options.md."""

    max_share_percent: int
    max_bytes: int
    min_match_percent: int
    max_clock_behind_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A breaker that spoke, with what it found and its limit, in words."""

    breaker: Breaker
    found: str
    limit: str

    def to_json(self) -> dict[str, str]:
        """Returns it as JSON values."""
        return {name: str(value) for name, value in asdict(self).items()}


SHARE_VARIABLE = "CAIRN_MAX_DELETED_SHARE"
BYTES_VARIABLE = "CAIRN_MAX_DELETED_SIZE"
MATCH_VARIABLE = "CAIRN_MIN_MATCH_RATE"
RATE_VARIABLE = "CAIRN_MAX_DELETES_PER_SECOND"

DEFAULT_MAX_BYTES = 1 << 40
DEFAULT_MIN_MATCH_PERCENT = 50
DEFAULT_MAX_DELETES_PER_S = 3_500
"""What S3 takes for a prefix."""
DEFAULT_SHARE_PERCENT = {MaintenanceAction.SUBSUMPTION: 100}
"""By action. A cleanup of a healthy job deletes nearly all: its changelog lives for minutes."""
_OTHERS_SHARE_PERCENT = 50


def spoken(planned: PlannedDeletes, limits: Limits) -> tuple[Spoken, ...]:
    """Returns the breakers that speak about a plan, in the order of `Breaker`."""
    return tuple(one for check in _CHECKS if (one := check(planned, limits)) is not None)


def limits_of(environment: Mapping[str, str], action: MaintenanceAction) -> Limits:
    """Returns the limits that an environment sets for an action, else the defaults.

    Raises:
        BadInputError: a variable is no percentage or size.
    """
    share = DEFAULT_SHARE_PERCENT.get(action, _OTHERS_SHARE_PERCENT)
    return Limits(
        max_share_percent=_number(environment, SHARE_VARIABLE, share, most=100),
        max_bytes=_size_bytes(environment, BYTES_VARIABLE, DEFAULT_MAX_BYTES),
        min_match_percent=_number(environment, MATCH_VARIABLE, DEFAULT_MIN_MATCH_PERCENT, most=100),
    )


def max_deletes_per_s(environment: Mapping[str, str]) -> int:
    """Returns how many objects this process may delete in a second.

    Raises:
        BadInputError: the variable is no number from 1 to a million.
    """
    return _number(environment, RATE_VARIABLE, DEFAULT_MAX_DELETES_PER_S, least=1, most=1_000_000)


def counted_files(files: int, limits: Limits) -> int:
    """Returns up to how many of the files that stay have to be counted: more change nothing."""
    if not files:
        return 0
    if limits.max_share_percent in (0, 100):
        return 1
    return files * (100 - limits.max_share_percent) // limits.max_share_percent + 1


def _empty_live_set(planned: PlannedDeletes, _: Limits) -> Spoken | None:
    if not (planned.files and planned.must_leave and not planned.left_files):
        return None
    return Spoken(
        breaker=Breaker.EMPTY_LIVE_SET,
        found=f"nothing is left besides the {planned.files} files of the plan",
        limit="a job with a retained checkpoint has files",
    )


def _share(planned: PlannedDeletes, limits: Limits) -> Spoken | None:
    total = planned.files + planned.left_files
    if planned.files * 100 <= limits.max_share_percent * total:
        return None
    return Spoken(
        breaker=Breaker.SHARE,
        found=f"{planned.files} files would be deleted and {planned.left_files} kept",
        limit=f"{SHARE_VARIABLE} is {limits.max_share_percent} %",
    )


def _bytes(planned: PlannedDeletes, limits: Limits) -> Spoken | None:
    if not planned.size_bytes or planned.size_bytes + planned.recent_bytes <= limits.max_bytes:
        return None
    return Spoken(
        breaker=Breaker.BYTES,
        found=f"{planned.size_bytes} bytes would be deleted, after {planned.recent_bytes} in the "
        "last hour",
        limit=f"{BYTES_VARIABLE} is {limits.max_bytes} bytes in an hour",
    )


def _match_rate(planned: PlannedDeletes, limits: Limits) -> Spoken | None:
    if planned.matched_objects * 100 >= limits.min_match_percent * planned.listed_objects:
        return None
    return Spoken(
        breaker=Breaker.MATCH_RATE,
        found=f"{planned.matched_objects} of {planned.listed_objects} listed objects have a row",
        limit=f"{MATCH_VARIABLE} is {limits.min_match_percent} %",
    )


def _failed_page(planned: PlannedDeletes, _: Limits) -> Spoken | None:
    if not planned.failed_pages:
        return None
    return Spoken(
        breaker=Breaker.FAILED_PAGE,
        found=f"{planned.failed_pages} pages of a listing failed",
        limit="a listing is whole",
    )


def _clock(planned: PlannedDeletes, limits: Limits) -> Spoken | None:
    if planned.clock_behind_ms <= limits.max_clock_behind_ms:
        return None
    return Spoken(
        breaker=Breaker.CLOCK,
        found=f"the metastore's clock is {planned.clock_behind_ms} ms behind what it has noted",
        limit=f"at most {limits.max_clock_behind_ms} ms",
    )


_CHECKS: tuple[Callable[[PlannedDeletes, Limits], Spoken | None], ...] = (
    _empty_live_set,
    _share,
    _bytes,
    _match_rate,
    _failed_page,
    _clock,
)


def _number(
    environment: Mapping[str, str], name: str, default: int, *, least: int = 0, most: int
) -> int:
    given = environment.get(name, "").strip()
    if not given:
        return default
    if not (given.isascii() and given.isdecimal() and least <= int(given) <= most):
        raise BadInputError(f"{name} is {given!r}, which is no number from {least} to {most}")
    return int(given)


def _size_bytes(environment: Mapping[str, str], name: str, default: int) -> int:
    given = environment.get(name, "").strip()
    try:
        return parse_size_bytes(given) if given else default
    except ValueError as error:
        raise BadInputError(f"{name} is {given!r}, which is no size such as 500g") from error
