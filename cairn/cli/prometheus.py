"""Rows of the view `v_metrics` as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Metric as Family

from cairn.catalog.metrics import METRICS, Metric, MetricKind

_TYPES = {
    MetricKind.COUNTER: "counter",
    MetricKind.GAUGE: "gauge",
    MetricKind.HISTOGRAM: "summary",
}
_SUFFIXES = {"counter": "_total", "gauge": "", "quantile": "", "sum": "_sum", "count": "_count"}
"""By what a row is."""
_LABELS = {
    "job_name": "job",
    "tm_id": "tm",
    "subtask": "subtask",
    "action": "action",
    "quantile": "quantile",
}
"""By the column that a label's value is in; a row has the labels that it has values for."""


def to_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns rows in Prometheus's text format, with every metric's help and type."""
    return generate_latest(to_registry(rows)).decode()


def to_registry(rows: Iterable[Mapping[str, Any]]) -> CollectorRegistry:
    """Returns a registry that holds the rows as they are."""
    families = {
        metric.name: Family(
            _family_name(metric), f"{metric.meaning} Unit: {metric.unit}.", _TYPES[metric.kind]
        )
        for metric in METRICS
    }
    for row in rows:
        family = families[row["metric"]]
        labels = {
            label: _label_value(row[column])
            for column, label in _LABELS.items()
            if row[column] is not None
        }
        family.add_sample(family.name + _SUFFIXES[row["kind"]], labels, row["value"])
    # A registry for each scrape: the process-wide one would keep series that have ended.
    registry = CollectorRegistry(auto_describe=True)
    registry.register(_Collected(list(families.values())))
    return registry


class _Collected:
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


def _family_name(metric: Metric) -> str:
    return f"cairn_{metric.name.replace('.', '_')}"


def _label_value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
