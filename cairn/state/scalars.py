"""How single values of Spark's types are checked and kept in msgpack."""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_MICROSECOND = datetime.timedelta(microseconds=1)
_MOST_MICROSECONDS = 2**63 - 1
_FOREIGN = (
    ("dtype", "tolist"),
    ("to_pytimedelta", "to_pytimedelta"),
    ("to_pydatetime", "to_pydatetime"),
)
_BUILT_IN = frozenset([bool, int, float, str, bytes])
_float32 = struct.Struct("<f")


class MismatchError(Exception):
    """A value is not of its type. Always caught here in the package, where the field is known."""


class Scalar(NamedTuple):
    """How values of one type are checked, kept and shown. None never reaches the functions.

    `write` returns what is kept and raises MismatchError, `read` gives back the Python value,
    `show` the JSON value; a `read` or `show` of None means the kept value as it is. A value whose
    type is exactly `exact`, within `low` and `high` if given, needs no `write`: it is kept as is.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any] | None = None
    show: Callable[[Any], Any] | None = None
    exact: type | None = None
    low: int | None = None
    high: int | None = None


def scalar(type_name: str) -> Scalar | None:
    """Returns how to handle a type by its name in schema JSON; None if it is no scalar known."""
    known = _SCALARS.get(type_name)
    if known is not None:
        return known
    if match := re.fullmatch(r"decimal\((\d+),(-?\d+)\)", type_name):
        return _decimal(int(match[1]), int(match[2]))
    if re.fullmatch(r"(var)?char\(\d+\)", type_name):
        return _SCALARS["string"]
    if re.fullmatch(r"time\([0-6]\)", type_name):
        return Scalar(_write_time, _read_time, lambda kept: _read_time(kept).isoformat())
    if re.fullmatch(r"interval (day|hour|minute|second)( to (hour|minute|second))?", type_name):
        return Scalar(_write_interval, _read_interval, lambda kept: str(_read_interval(kept)))
    return None


def plain(value: object) -> object:
    """Returns numpy and pandas values as the Python values that Spark takes them for.

    Do not call it for a Row: that answers what attributes it lacks by raising, slowly.
    """
    if type(value) in _BUILT_IN:
        return value
    for mark, convert in _FOREIGN:
        if hasattr(value, mark):
            converted: object = getattr(value, convert)()
            return converted
    return value


def _integer(bits: int) -> Scalar:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def write(value: object) -> int:
        value = plain(value)
        # A bool is an int to Python, and not to Spark.
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise MismatchError
        return int(value)

    return Scalar(write, exact=int, low=low, high=high)


def _write_boolean(value: object) -> bool:
    value = plain(value)
    if not isinstance(value, bool):
        raise MismatchError
    return value


def _write_double(value: object) -> float:
    value = plain(value)
    if not isinstance(value, float):
        raise MismatchError
    return float(value)


def _write_float(value: object) -> float:
    try:
        # Rounded as Spark's float is, so that it reads the same before and after a restart.
        return float(_float32.unpack(_float32.pack(_write_double(value)))[0])
    except OverflowError as error:
        raise MismatchError from error


def _show_float(kept: float) -> float | str:
    return kept if math.isfinite(kept) else str(kept)


def _write_string(value: object) -> str:
    value = plain(value)
    if not isinstance(value, str):
        raise MismatchError
    # A plain str of the same text: a subclass may be packed as something else.
    text = str.__str__(value)
    if not text.isascii():
        try:
            # A lone surrogate is no UTF-8; better here, where the field is known, than in msgpack.
            text.encode()
        except UnicodeEncodeError as error:
            raise MismatchError from error
    return text


def _write_binary(value: object) -> bytes:
    value = plain(value)
    if not isinstance(value, bytes | bytearray):
        raise MismatchError
    return bytes(value)


def _show_binary(kept: bytes) -> str:
    return base64.b64encode(kept).decode()


def _write_void(value: object) -> None:
    raise MismatchError


def _write_date(value: object) -> int:
    if type(value) is not datetime.date:
        value = plain(value)
    if not isinstance(value, datetime.date) or value != value:  # noqa: PLR0124 - NaT is a date
        raise MismatchError
    return value.toordinal() - _EPOCH_DAY


def _read_date(kept: int) -> datetime.date:
    return datetime.date.fromordinal(kept + _EPOCH_DAY)


def _datetime(value: object) -> datetime.datetime:
    if type(value) is datetime.datetime:
        return value
    value = plain(value)
    if not isinstance(value, datetime.datetime) or value != value:  # noqa: PLR0124 - pandas' NaT
        raise MismatchError
    return value


def _write_timestamp(value: object) -> int:
    try:
        # A naive value is local time, as everywhere in PySpark.
        moment = _datetime(value).astimezone(datetime.UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise MismatchError from error
    return (moment - _EPOCH_UTC) // _MICROSECOND


def _read_timestamp(kept: int) -> datetime.datetime:
    seconds, microsecond = divmod(kept, 1_000_000)
    # Naive, in local time, as PySpark gives timestamps.
    return datetime.datetime.fromtimestamp(seconds).replace(microsecond=microsecond)


def _show_timestamp(kept: int) -> str:
    return (_EPOCH + kept * _MICROSECOND).isoformat() + "Z"


def _write_timestamp_ntz(value: object) -> int:
    moment = _datetime(value)
    if moment.tzinfo is not None:
        raise MismatchError
    return (moment - _EPOCH) // _MICROSECOND


def _read_timestamp_ntz(kept: int) -> datetime.datetime:
    return _EPOCH + kept * _MICROSECOND


def _write_time(value: object) -> int:
    if not isinstance(value, datetime.time) or value.tzinfo is not None:
        raise MismatchError
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def _read_time(kept: int) -> datetime.time:
    return (_EPOCH + kept * _MICROSECOND).time()


def _write_interval(value: object) -> int:
    value = plain(value)
    if not isinstance(value, datetime.timedelta) or value != value:  # noqa: PLR0124 - pandas' NaT
        raise MismatchError
    microseconds = value // _MICROSECOND
    if abs(microseconds) > _MOST_MICROSECONDS:
        raise MismatchError
    return microseconds


def _read_interval(kept: int) -> datetime.timedelta:
    return kept * _MICROSECOND


def _decimal(precision: int, scale: int) -> Scalar:
    # HALF_UP is what Spark's own state rounds by.
    context = decimal.Context(prec=precision, rounding=decimal.ROUND_HALF_UP)
    unit = decimal.Decimal(1).scaleb(-scale)

    def write(value: object) -> str:
        if not isinstance(value, decimal.Decimal) or not value.is_finite():
            raise MismatchError
        try:
            kept = value.quantize(unit, context=context)
        except decimal.InvalidOperation as error:
            raise MismatchError from error
        # Minus zero is zero: equal values have equal bytes.
        return str(kept if kept else kept.copy_abs())

    return Scalar(write, decimal.Decimal, lambda kept: format(decimal.Decimal(kept), "f"))


_TIMESTAMP = Scalar(_write_timestamp, _read_timestamp, _show_timestamp)
_TIMESTAMP_NTZ = Scalar(
    _write_timestamp_ntz, _read_timestamp_ntz, lambda kept: _read_timestamp_ntz(kept).isoformat()
)
_SCALARS = {
    "boolean": Scalar(_write_boolean, exact=bool),
    "byte": _integer(8),
    "short": _integer(16),
    "integer": _integer(32),
    "long": _integer(64),
    "float": Scalar(_write_float, show=_show_float),
    "double": Scalar(_write_double, show=_show_float, exact=float),
    "string": Scalar(_write_string, exact=str),
    "binary": Scalar(_write_binary, show=_show_binary, exact=bytes),
    "void": Scalar(_write_void, exact=type(None)),
    "date": Scalar(_write_date, _read_date, lambda kept: _read_date(kept).isoformat()),
    "timestamp": _TIMESTAMP,
    "timestamp_ntz": _TIMESTAMP_NTZ,
}
