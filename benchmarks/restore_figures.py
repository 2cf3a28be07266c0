"""The restore benchmark's figures: table, JSON and plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.table import Table

from benchmarks.common import add_text, machine, new_table
from benchmarks.figures import Spread, Target
from benchmarks.restore_history import CHANGELOG, MATERIALIZED, Kinds
from benchmarks.restore_local import Restore
from benchmarks.restore_rows import WRITES, Shape
from benchmarks.restore_spark import NATIVE, Start

MOST_READ, FASTER = 1.3, 3.0
_MB = 1_000_000
_BAR, _GAP, _LEFT, _WIDTH, _RIGHT = 16, 10, 260, 420, 90
_COLOURS = {NATIVE: "#8a8a8a", CHANGELOG: "#c9643b"}
_OTHER_COLOUR = "#2a6fb0"


@dataclass
class Measured:
    """Everything that one run measured. `restores` and `starts` have a value a repetition."""

    shape: Shape
    parallelism: int
    load_before: float
    holds: dict[str, Kinds] = field(default_factory=dict)
    restores: dict[str, list[Restore]] = field(default_factory=dict)
    starts: dict[str, list[Start]] = field(default_factory=dict)


def targets(measured: Measured) -> list[Target]:
    """Returns the comparisons that are aimed at."""
    restored, replayed = (measured.restores[name] for name in (MATERIALIZED, CHANGELOG))
    read = [one.reads.size_bytes / measured.shape.state_bytes for one in restored]
    faster = [b.seconds / a.seconds for a, b in zip(restored, replayed, strict=True)]
    bytes_read, times_faster = Spread.of(read), Spread.of(faster)
    return [
        Target("restore", "bytes read / the state's", bytes_read, MOST_READ, at_least=False),
        Target("restore", "time, changelog/materialized", times_faster, FASTER, at_least=True),
    ]


def loading_ms(start: Start) -> int:
    """Returns by how much a start's first batch took longer than the one after it."""
    return start.add_batch_ms[0] - start.add_batch_ms[1]


def to_json(measured: Measured) -> dict[str, Any]:
    """Returns everything as plain values."""
    shape = measured.shape
    return {
        "machine": machine(measured.load_before),
        "state": {
            "bytes": shape.state_bytes,
            "keys": shape.keys,
            "payload_bytes": shape.payload_bytes,
            "writes_a_key": WRITES,
            "parallelism": measured.parallelism,
        },
        "holds": {name: asdict(kinds) for name, kinds in measured.holds.items()},
        "restores": {
            name: [asdict(one) for one in restores] for name, restores in measured.restores.items()
        },
        "spark": {
            name: [
                {key: value for key, value in asdict(one).items() if key != "output"}
                | {"loading_ms": loading_ms(one)}
                for one in starts
            ]
            for name, starts in measured.starts.items()
        },
        "targets": [asdict(one) | {"met": one.met} for one in targets(measured)],
    }


def print_tables(measured: Measured, console: Console) -> None:
    """Prints what is held, the times and the targets."""
    console.print(_restores_table(measured))
    if measured.starts:
        console.print(_starts_table(measured))
    for one in targets(measured):
        spread, sign = one.spread, "≥" if one.at_least else "≤"
        verdict = "[green]ok" if one.met else "[red]missed"
        console.print(
            f"{one.what}: {spread.median:.2f} ({spread.lowest:.2f}–{spread.highest:.2f}), "
            f"wanted {sign} {one.bound:g} {verdict}"
        )


def _restores_table(measured: Measured) -> Table:
    state_mb = measured.shape.state_bytes / _MB
    title = f"Restoring {state_mb:.0f} MB from storage into empty local state"
    columns = ("s", "lowest–highest", "CPU s", "MB read", "of the state", "requests", "in flight")
    table = new_table(title, "history")
    for column in columns:
        table.add_column(column, justify="right")
    for name, restores in measured.restores.items():
        seconds = Spread.of([one.seconds for one in restores])
        reads = restores[0].reads
        table.add_row(
            name,
            f"{seconds.median:.2f}",
            f"{seconds.lowest:.2f}–{seconds.highest:.2f}",
            f"{statistics.median(one.cpu_s for one in restores):.2f}",
            f"{reads.size_bytes / _MB:.0f}",
            f"{reads.size_bytes / measured.shape.state_bytes:.2f}",
            str(reads.requests),
            str(max(one.reads.most_in_flight for one in restores)),
        )
    return table


def _starts_table(measured: Measured) -> Table:
    title = "A query that starts again without local state, in ms"
    table = new_table(title, "engine")
    for column in ("first batch", "a batch later", "more", "lowest–highest", "said"):
        table.add_column(column, justify="right")
    for name, starts in measured.starts.items():
        more = Spread.of([loading_ms(one) for one in starts])
        table.add_row(
            name,
            f"{statistics.median(one.add_batch_ms[0] for one in starts):.0f}",
            f"{statistics.median(one.add_batch_ms[1] for one in starts):.0f}",
            f"{more.median:.0f}",
            f"{more.lowest:.0f}–{more.highest:.0f}",
            _said(starts),
        )
    return table


def _said(starts: Sequence[Start]) -> str:
    """Returns what the engine itself says of its loading: the median of each figure."""
    if starts[0].restore_ms is not None:
        return f"restore_ms {statistics.median(one.restore_ms or 0 for one in starts):.0f}"
    return "\n".join(
        f"{name} {statistics.median(one.native_ms[name] for one in starts):.0f}"
        for name in starts[0].native_ms
    )


def plot(measured: Measured) -> str:
    """Returns an SVG with a bar for each median: the restores, then the queries' loading."""
    bars = [
        (name, [one.seconds for one in restores]) for name, restores in measured.restores.items()
    ]
    bars += [
        (f"{name}, in a query", [loading_ms(one) / 1000 for one in starts])
        for name, starts in measured.starts.items()
    ]
    longest_s = max(max(values) for _, values in bars)
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg")
    for name, value in (("font-family", "sans-serif"), ("font-size", "12")):
        svg.set(name, value)
    svg.set("width", str(_LEFT + _WIDTH + _RIGHT))
    svg.set("height", str((_BAR + _GAP) * (len(bars) + 1)))
    title = f"restoring {measured.shape.state_bytes / _MB:.0f} MB"
    add_text(svg, _GAP, _BAR, title)
    for place, (name, values) in enumerate(bars, start=1):
        top, median = place * (_BAR + _GAP), max(0.0, statistics.median(values))
        width = median / longest_s * _WIDTH
        bar = {"x": str(_LEFT), "y": str(top), "width": f"{width:.1f}", "height": str(_BAR)}
        ET.SubElement(svg, "rect", bar, fill=_COLOURS.get(name.split(",")[0], _OTHER_COLOUR))
        add_text(svg, _LEFT - 5, top + _BAR - 4, name, anchor="end")
        add_text(svg, _LEFT + width + 5, top + _BAR - 4, f"{median:.2f} s")
    return ET.tostring(svg, encoding="unicode")
