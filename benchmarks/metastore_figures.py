"""The metastore benchmark's figures: two versions of the code beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console

from benchmarks.common import machine, new_table
from benchmarks.figures import Spread

BEFORE, AFTER = "before", "after"
Values = dict[str, dict[str, list[float]]]
"""By point and figure, a value a repetition."""


@dataclass
class Measured:
    """Everything that one run measured: by workload and side, then by point and figure."""

    against: str
    load_before: float
    values: dict[str, dict[str, Values]] = field(default_factory=dict)

    def add(self, workload: str, side: str, figures: Mapping[str, Mapping[str, float]]) -> None:
        """Adds the figures of one repetition."""
        values = self.values.setdefault(workload, {BEFORE: {}, AFTER: {}})[side]
        for point, by_name in figures.items():
            for name, value in by_name.items():
                values.setdefault(point, {}).setdefault(name, []).append(value)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both sides; a side is None where that version has no such thing.

    `factor` is how many times better the later version is: less time or bytes, or a higher rate.
    """

    point: str
    name: str
    before: Spread | None
    after: Spread | None
    factor: Spread | None


def rows(measured: Measured, workload: str) -> Iterator[Row]:
    """Yields the figures of a workload, in the order in which they were measured."""
    before, after = (measured.values[workload][side] for side in (BEFORE, AFTER))
    for point in dict.fromkeys([*before, *after]):
        olds, news = before.get(point, {}), after.get(point, {})
        for name in dict.fromkeys([*olds, *news]):
            old, new = olds.get(name, []), news.get(name, [])
            factors = [
                b / a if name.endswith("/s") else a / b
                for a, b in zip(old, new, strict=False)
                if a > 0 and b > 0
            ]
            yield Row(
                point, name, *(Spread.of(all_) if all_ else None for all_ in (old, new, factors))
            )


def to_json(measured: Measured) -> dict[str, Any]:
    """Returns everything as plain values."""
    return {
        "machine": machine(measured.load_before),
        "against": measured.against,
        "workloads": {
            name: {
                "values": values,
                "figures": [asdict(row) for row in rows(measured, name)],
            }
            for name, values in measured.values.items()
        },
    }


def print_tables(measured: Measured, console: Console) -> None:
    """Prints a table for each workload."""
    for workload in measured.values:
        title = f"{workload}: median (lowest–highest); before is {measured.against}"
        table = new_table(title, "", "")
        for column in (BEFORE, AFTER, "times better"):
            table.add_column(column, justify="right")
        point = None
        for row in rows(measured, workload):
            if point not in (None, row.point):
                table.add_section()
            shown = "" if row.point == point else row.point
            point = row.point
            table.add_row(shown, row.name, *map(_shown, (row.before, row.after, row.factor)))
        console.print(table)


def _shown(spread: Spread | None) -> str:
    if spread is None:
        return ""
    median, lowest, highest = map(_number, (spread.median, spread.lowest, spread.highest))
    return median if lowest == highest else f"{median} ({lowest}–{highest})"


def _number(value: float) -> str:
    """Returns three digits, and all of a whole part that has more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
