"""What the methods of a processor's handle are given, checked."""

from __future__ import annotations

from cairn.errors import BadInputError
from cairn.state.entries import FIRST_MS, LAST_MS
from cairn.state.scalars import plain
from cairn.state.times import TimeMode


def checked_ttl(name: str, ttl_ms: object, mode: TimeMode) -> int | None:
    """Returns the TTL of a state variable in ms; None for never, which 0 means, too.

    Raises:
        BadInputError: it is no int above 0, or the time mode is not ProcessingTime.
    """
    if ttl_ms is None or (type(ttl_ms) is int and ttl_ms == 0):
        return None
    if type(ttl_ms) is not int or ttl_ms < 0:
        raise BadInputError(
            f"state variable {name}: ttlDurationMs is {ttl_ms!r}; it has to be an int above 0"
        )
    if mode is not TimeMode.PROCESSING_TIME:
        raise BadInputError(
            f"state variable {name}: ttlDurationMs is {ttl_ms} in timeMode {mode}; TTL uses "
            'processing time. Pass timeMode="ProcessingTime" to transformWithState, or no TTL'
        )
    return ttl_ms


def checked_expiry(expiry_ms: object) -> int:
    """Returns the expiry of a timer, in ms since 1970.

    Raises:
        BadInputError: it is no int of 64 bits.
    """
    expiry_ms = plain(expiry_ms)
    if type(expiry_ms) is not int or not FIRST_MS <= expiry_ms <= LAST_MS:
        raise BadInputError(
            f"a timer's expiry is {expiry_ms!r}; it has to be an int, in ms since 1970 UTC"
        )
    return expiry_ms


def declared_and_deleted(name: str) -> BadInputError:
    """Returns the error for a state variable that one `init` both declares and deletes."""
    return BadInputError(
        f"deleteIfExists names the state variable {name}, which the processor declares: do one or "
        "the other; to forget its state, clear it while rows are handled"
    )
