"""The columns that `groupBy` names: by name in any case, in a struct, as a Column, by number."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cairn.errors import BadInputError

_QUOTED = r"`(?:[^`]|``)+`"
_PART = rf"{_QUOTED}|[^.`]+"
_PATH = re.compile(rf"(?:{_PART})(?:\.(?:{_PART}))*")
_SHOWN = re.compile(
    rf"Column<'((?:{_QUOTED}|[^\W\d]\w*)(?:\.(?:{_QUOTED}|\w+)|\['[^']+'\])*)(?: AS \S+)?'>"
)
"""How Spark shows a Column that is a column, or a field of one, which it names after AS."""
_AT = re.compile(r"\['([^']+)'\]")


def with_key_columns(
    df: DataFrame, cols: Sequence[object], *, job: str
) -> tuple[DataFrame, tuple[str, ...]]:
    """Returns a DataFrame that has all key columns, and their names in it.

    As Spark's groupBy: a name in another case where the session does not tell cases apart, a list
    of columns, a Column, a column's number from 1, and a field of a struct, which the rows get as
    columns of their own, before the others.

    Raises:
        BadInputError: there is no such column, or several, or it is an expression.
    """
    flat = [c for col in cols for c in (col if isinstance(col, list | tuple) else [col])]
    if not flat:
        raise BadInputError("groupBy needs a DataFrame and a column", job=job)
    names, fields = list[str](), dict[str, Column]()
    for col in flat:
        path = _path(df, col, job)
        top = path if isinstance(path, str) else _top_level(df, path, job)
        if top is None:
            top = path[-1]
            fields[top] = _field(df, path, [*fields], job)
        if top not in names:  # the same column twice groups as once
            names.append(top)
    if fields:
        df = df.select(*[field.alias(name) for name, field in fields.items()], "*")
    return df, tuple(names)


def _path(df: DataFrame, col: object, job: str) -> str | list[str]:
    """Returns a column's name as it is, or the parts of a path to one."""
    if isinstance(col, int) and not isinstance(col, bool) and 1 <= col <= len(df.columns):
        return df.columns[col - 1]
    text = col if isinstance(col, str) else None
    if isinstance(col, Column) and (shown := _SHOWN.fullmatch(str(col))):
        text = _AT.sub(r".`\1`", shown[1])
    if text in df.columns:
        return str(text)
    if text is None or not _PATH.fullmatch(text):
        raise BadInputError(
            f"groupBy takes columns of the DataFrame, not {col!r}; add an expression with "
            "df.withColumn(name, …) and group by that name",
            job=job,
        )
    return [part.strip("`").replace("``", "`") for part in re.findall(_PART, text)]


def _top_level(df: DataFrame, path: Sequence[str], job: str) -> str | None:
    """Returns the column that a path names; None if it names a field of one."""
    found = _same(df, path[0])
    if not found and len(path) > 1:  # of df.alias("t"), "t.k" is k
        found, path = _same(df, path[1]), path[1:]
    if not found or len(found) > 1:
        raise BadInputError(
            f"{'several columns are' if found else 'no column'} {'.'.join(path)!r}; the DataFrame "
            f"has {', '.join(df.columns)}",
            job=job,
        )
    return found[0] if len(path) == 1 else None


def _same(df: DataFrame, name: str) -> list[str]:
    """Returns the columns that a name stands for, by the session's rule of cases."""
    if df.sparkSession.conf.get("spark.sql.caseSensitive") == "true":
        return [column for column in df.columns if column == name]
    return [column for column in df.columns if column.lower() == name.lower()]


def _field(df: DataFrame, path: Sequence[str], taken: Sequence[str], job: str) -> Column:
    text = ".".join("`" + part.replace("`", "``") + "`" for part in path)
    if path[-1] in taken or _same(df, path[-1]):
        raise BadInputError(
            f"the field {'.'.join(path)} has the name of another column, {path[-1]}; add it with "
            "df.withColumn under a name of its own and group by that",
            job=job,
        )
    try:
        df.select(text).schema  # noqa: B018 - Connect looks a column up only here
    except AnalysisException as error:
        raise BadInputError(f"no column {text}: {error}", job=job) from error
    return F.col(text)
