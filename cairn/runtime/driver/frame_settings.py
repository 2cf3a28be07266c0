"""The session's settings of pandas that Spark's own operator honours."""

from __future__ import annotations

import re
from collections.abc import Callable

from cairn.errors import BadInputError
from cairn.runtime.processing.arrow_types import arrow_zone
from cairn.runtime.processing.operator_spec import UNLIMITED, FrameSettings

_UNITS = " kmgtp"


def frame_settings(get: Callable[[str], str | None]) -> FrameSettings:
    """Returns a session's settings of pandas; `get` returns one by its name.

    Raises:
        BadInputError: a limit is no number of rows or bytes.
    """

    def is_on(name: str) -> bool:
        return (get(f"spark.sql.{name}") or "").lower() == "true"

    return FrameSettings(
        timezone=arrow_zone(get("spark.sql.session.timeZone") or "UTC"),
        max_rows=_limit(get, "spark.sql.execution.arrow.maxRecordsPerBatch"),
        max_bytes=_limit(get, "spark.sql.execution.arrow.maxBytesPerBatch"),
        is_safe=is_on("execution.pandas.convertToArrowArraySafely"),
        by_name=is_on("legacy.execution.pandas.groupedMap.assignColumnsByName"),
        ints_to_decimals=is_on("execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
        nullable_ints=is_on("execution.pythonUDF.pandas.preferIntExtensionDtype"),
    )


def _limit(get: Callable[[str], str | None], name: str) -> int:
    text = get(name) or "0"
    match = re.fullmatch(rf"(-?\d+)\s*([{_UNITS}]?)b?", text.strip().lower())
    if match is None:
        raise BadInputError(f"{name} is {text!r}; it has to be a number, such as 10000 or 64mb")
    limit = int(match[1]) << 10 * _UNITS.index(match[2] or " ")
    return limit if 0 < limit < UNLIMITED else UNLIMITED  # Spark takes 0 and less as no limit
