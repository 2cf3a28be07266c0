"""Tables, JSON and a plot of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.table import Table

from benchmarks.common import add_text, machine, new_table
from benchmarks.figures import Figures, figures, targets
from benchmarks.results import Result
from benchmarks.session import HEAP, MASTER

_COLOURS = {"native": "#8a8a8a", "cairn": "#2a6fb0", "floor": "#c9d8e6"}
_OTHER_COLOUR = "#7fa8cf"
_BAR, _GAP, _LEFT, _WIDTH, _RIGHT = 16, 14, 330, 420, 90
_MB = 1_000_000


def to_json(results: Sequence[Result], load: float) -> dict[str, Any]:
    """Returns everything that was measured, as plain values.

    Args:
        results: one a workload.
        load: the machine's load average when the benchmark began.
    """
    return {
        "machine": machine(load) | {"master": MASTER, "heap": HEAP},
        "workloads": [
            {
                "name": result.workload.name,
                "about": result.workload.about,
                "rows": result.workload.rows,
                "keys": result.workload.keys,
                "parallelism": result.workload.parallelism,
                "figures": [asdict(one) for one in figures(result)],
                "targets": [asdict(one) | {"met": one.met} for one in targets(result)],
                "memory": {name: asdict(used) for name, used in result.memory.items()},
                "repetitions": {
                    name: [asdict(one) for one in repetitions]
                    for name, repetitions in result.repetitions.items()
                },
            }
            for result in results
        ],
    }


def print_tables(results: Sequence[Result], console: Console) -> None:
    """Prints the times, the counts, the memory and the targets."""
    console.print(_times_table(results))
    console.print(_counts_table(results))
    if any(result.memory for result in results):
        console.print(_memory_table(results))
    console.print(_targets_table(results))


def _times_table(results: Sequence[Result]) -> Table:
    table = new_table("Times in ms: medians over repetitions", "workload", "engine")
    for column in ("addBatch", "lowest–highest", "trigger", "first batch", "restart"):
        table.add_column(column, justify="right")
    for result in results:
        for one in figures(result):
            table.add_row(
                one.workload,
                one.engine,
                f"{one.add_batch_ms.median:.0f}",
                f"{one.add_batch_ms.lowest:.0f}–{one.add_batch_ms.highest:.0f}",
                f"{one.trigger_ms.median:.0f}",
                f"{one.first_batch_ms.median:.0f}",
                f"{one.restart_ms.median:.0f}",
            )
        table.add_section()
    return table


def _counts_table(results: Sequence[Result]) -> Table:
    table = new_table("A batch: state files created, S3 requests", "workload", "engine")
    for column in ("files", "snapshots", ".crc files", "requests"):
        table.add_column(column, justify="right")
    for result in results:
        for one in figures(result):
            counts = (one.files, one.snapshot_files, one.checksum_files, one.requests)
            table.add_row(one.workload, one.engine, *(f"{count.median:.1f}" for count in counts))
        table.add_section()
    return table


def _memory_table(results: Sequence[Result]) -> Table:
    title = "Peak memory of the largest Python worker in MB"
    table = new_table(title, "workload", "engine")
    for column in ("unique set size", "without LMDB's file"):
        table.add_column(column, justify="right")
    for result in results:
        for engine, used in result.memory.items():
            table.add_row(
                result.workload.name,
                engine,
                f"{used.uss_bytes / _MB:.0f}",
                f"{used.without_lmdb_bytes / _MB:.0f}",
            )
    return table


def _targets_table(results: Sequence[Result]) -> Table:
    table = new_table("Targets: medians over repetitions", "workload", "comparison")
    for column in ("median", "lowest–highest", "target"):
        table.add_column(column, justify="right")
    table.add_column("")
    for result in results:
        for target in targets(result):
            spread = target.spread
            table.add_row(
                target.workload,
                target.what,
                f"{spread.median:.2f}",
                f"{spread.lowest:.2f}–{spread.highest:.2f}",
                f"{'≥' if target.at_least else '≤'} {target.bound:g}",
                "[green]ok" if target.met else "[red]missed",
            )
        table.add_section()
    return table


def plot(results: Sequence[Result]) -> str:
    """Returns an SVG with a bar for each engine's addBatch, scaled within each workload."""
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg")
    svg.set("font-family", "sans-serif")
    svg.set("font-size", "12")
    top = _GAP
    for result in results:
        rows = list(figures(result))
        longest_ms = max(row.add_batch_ms.highest for row in rows)
        add_text(svg, _GAP, top + _BAR - 4, result.workload.about)
        for row in rows:
            _bar(svg, top, row, longest_ms)
            top += _BAR
        top += _GAP
    svg.set("width", str(_LEFT + _WIDTH + _RIGHT))
    svg.set("height", str(top))
    return ET.tostring(svg, encoding="unicode")


def _bar(svg: ET.Element, top: int, row: Figures, longest_ms: float) -> None:
    """Adds the median as a bar with the spread as a line through its end."""
    spread = row.add_batch_ms
    end, lowest, highest = (
        _LEFT + value / longest_ms * _WIDTH
        for value in (spread.median, spread.lowest, spread.highest)
    )
    height = str(_BAR - 3)
    bar = {"x": str(_LEFT), "y": str(top), "width": f"{end - _LEFT:.1f}", "height": height}
    ET.SubElement(svg, "rect", bar, fill=_COLOURS.get(row.engine, _OTHER_COLOUR))
    middle = str(top + _BAR // 2 - 2)
    line = {"x1": f"{lowest:.1f}", "x2": f"{highest:.1f}", "y1": middle, "y2": middle}
    ET.SubElement(svg, "line", line, stroke="black")
    add_text(svg, _LEFT - 5, top + _BAR - 5, row.engine, anchor="end")
    add_text(svg, max(end, highest) + 5, top + _BAR - 5, f"{spread.median:.0f} ms")
