"""Line charts as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

_COLOURS = {"native": "#8a8a8a", "off": "#c9643b", "within": "#2a6fb0", "across": "#2f8f5b"}
_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 460, 160, 60, 30, 90


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its name, and a value for each batch."""

    name: str
    values: Sequence[float]


def lines_svg(charts: Mapping[str, Sequence[Line]]) -> str:
    """Returns the charts below each other, each from 0 to its highest value, by their titles."""
    step = _HEIGHT + 2 * _TOP
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg")
    svg.set("font-family", "sans-serif")
    svg.set("font-size", "12")
    svg.set("width", str(_LEFT + _WIDTH + _LEGEND))
    svg.set("height", str(step * len(charts)))
    for place, (title, lines) in enumerate(charts.items()):
        _chart(svg, place * step + _TOP, title, lines)
    return ET.tostring(svg, encoding="unicode")


def _chart(svg: ET.Element, top: int, title: str, lines: Sequence[Line]) -> None:
    highest = max(max(line.values) for line in lines)
    batches = max(len(line.values) for line in lines)
    _text(svg, _LEFT, top - 10, title)
    _text(svg, _LEFT - 5, top + 10, f"{highest:.4g}", anchor="end")
    _text(svg, _LEFT - 5, top + _HEIGHT, "0", anchor="end")
    _text(svg, _LEFT + _WIDTH, top + _HEIGHT + 15, f"batch {batches}", anchor="end")
    axes = f"{_LEFT},{top} {_LEFT},{top + _HEIGHT} {_LEFT + _WIDTH},{top + _HEIGHT}"
    ET.SubElement(svg, "polyline", points=axes, fill="none", stroke="black")
    for number, line in enumerate(lines):
        points = " ".join(
            f"{_LEFT + place / max(1, batches - 1) * _WIDTH:.1f},"
            f"{top + _HEIGHT - value / highest * _HEIGHT:.1f}"
            for place, value in enumerate(line.values)
        )
        colour = _COLOURS.get(line.name, "black")
        ET.SubElement(svg, "polyline", points=points, fill="none", stroke=colour)
        _text(svg, _LEFT + _WIDTH + 8, top + 12 + 16 * number, line.name, colour=colour)


def _text(
    svg: ET.Element, x: float, y: float, text: str, *, anchor: str = "start", colour: str = "black"
) -> None:
    place = {"x": str(x), "y": str(y), "text-anchor": anchor, "fill": colour}
    ET.SubElement(svg, "text", place).text = text
