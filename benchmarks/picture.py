"""`make picture`: the README's picture, drawn from the tables of docs/performance.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.common import add_text

DOCS = Path(__file__).resolve().parent.parent / "docs"
PICTURE = DOCS / "native-comparison.svg"

_COLOURS = {"native Spark": "#8a8a8a", "Cairn": "#2a6fb0"}
_LEFT, _WIDTH, _RIGHT, _BAR, _ROW, _TITLE = 310, 380, 70, 11, 34, 44


@dataclass(frozen=True, slots=True)
class Pair:
    """What both engines took, in the unit of the chart."""

    native: float
    cairn: float


def batch_times(performance: str) -> dict[str, Pair]:
    """Returns the medians of a batch in ms, by workload."""
    row = r"^\| ([^|]+) \|[^|]+\|[^|]+\| ([\d,]+) \| ([\d,]+) \| [\d,]+ \|[^|]+\| ≥"
    return _pairs(row, performance)


def files_a_batch(performance: str) -> dict[str, Pair]:
    """Returns the files of a batch, by the number of state partitions."""
    return _pairs(r"^\| (\d+ state partitions[^|]*) \| ([\d.]+) \| ([\d.]+) \|$", performance)


def draw(charts: Mapping[str, Mapping[str, Pair]]) -> str:
    """Returns an SVG with a bar chart for each title, each from 0 to its highest value."""
    height = sum(_TITLE + _ROW * len(rows) for rows in charts.values()) + _BAR
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg")
    svg.set("font-family", "sans-serif")
    svg.set("font-size", "12")
    svg.set("width", str(_LEFT + _WIDTH + _RIGHT))
    svg.set("height", str(height))
    ET.SubElement(svg, "rect", width="100%", height="100%", fill="white")
    top = 0
    for title, rows in charts.items():
        add_text(svg, 12, top + 26, title)
        top += _TITLE
        highest = max(max(pair.native, pair.cairn) for pair in rows.values())
        for name, pair in rows.items():
            add_text(svg, _LEFT - 8, top + _BAR + 5, name, anchor="end")
            _bar(svg, top, "native Spark", pair.native, highest)
            _bar(svg, top + _BAR + 1, "Cairn", pair.cairn, highest)
            top += _ROW
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def main() -> None:
    """Writes the picture."""
    PICTURE.write_text(picture())


def picture() -> str:
    """Returns the picture of what docs/performance.md says now."""
    performance = (DOCS / "performance.md").read_text()
    return draw(
        {
            "Median time of a batch in ms: native Spark (grey), Cairn (blue)": batch_times(
                performance
            ),
            "Files written in a batch": files_a_batch(performance),
        }
    )


def _pairs(row: str, text: str) -> dict[str, Pair]:
    found = re.findall(row, text, flags=re.MULTILINE)
    return {name: Pair(_number(native), _number(cairn)) for name, native, cairn in found}


def _number(cell: str) -> float:
    return float(cell.replace(",", ""))


def _bar(svg: ET.Element, top: float, engine: str, value: float, highest: float) -> None:
    width = max(1.0, value / highest * _WIDTH)
    box = {"x": str(_LEFT), "y": str(top), "width": f"{width:.1f}", "height": str(_BAR)}
    ET.SubElement(svg, "rect", box, fill=_COLOURS[engine])
    add_text(svg, _LEFT + width + 5, top + _BAR - 1, f"{value:,g}")


if __name__ == "__main__":
    main()
