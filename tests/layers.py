"""Who may import whom, lowest first: the tests of imports and of ARCHITECTURE.md read it."""

from __future__ import annotations

VALUES = {
    "cairn.batch_ref",
    "cairn.errors",
    "cairn.handles",
    "cairn.keygroups",
    "cairn.layout",
    "cairn.manifest",
    "cairn.names",
    "cairn.owner",
    "cairn.printable",
    "cairn.segment_index",
    "cairn.settings",
    "cairn.units",
}
"""Plain values without I/O. The words that columns of the metastore hold are plain values, too."""
BASICS = VALUES | {"metastore.enums"}

MAY_IMPORT: dict[str, set[str]] = {
    "metastore": {"metastore.enums"},
    "metastore.enums": set(),
    **dict.fromkeys(VALUES, BASICS),
    "cairn.locks": BASICS,
    "cairn.storage": BASICS,
    "cairn.state": BASICS,
    "cairn.segments": BASICS | {"cairn.storage", "cairn.state"},
    "cairn.catalog": BASICS | {"cairn.locks", "cairn.state", "metastore"},
    "cairn.ownership": BASICS | {"cairn.storage", "cairn.catalog"},
    "cairn.savepoints": BASICS | {"cairn.storage", "cairn.catalog", "cairn.ownership"},
    "cairn.runtime": BASICS
    | {"cairn.locks", "cairn.storage", "cairn.state", "cairn.segments"}
    | {"cairn.catalog", "cairn.ownership", "cairn.savepoints"},
    "cairn.maintenance": BASICS
    | {"cairn.storage", "cairn.segments", "cairn.catalog", "cairn.ownership"},
    "cairn": BASICS | {"cairn.runtime"},
    "cairn.cli": BASICS
    | {"cairn.storage", "cairn.state", "cairn.segments", "cairn.catalog", "metastore"}
    | {"cairn.maintenance", "cairn.ownership", "cairn.savepoints"},
    "cairn.airflow_ext": BASICS | {"cairn.catalog", "cairn.maintenance"},
    "spark_jobs": BASICS | {"cairn", "cairn.catalog", "cairn.maintenance"},
    "dags": {"cairn.airflow_ext"},
    "demo": BASICS
    | {"cairn", "cairn.storage", "cairn.state", "cairn.segments", "cairn.catalog", "metastore"}
    | {"cairn.airflow_ext", "cairn.cli", "cairn.locks", "cairn.maintenance", "spark_jobs"},
}
"""What a package may import besides itself. `cairn` alone is `cairn/__init__.py`, the front."""

RUNTIME: dict[str, set[str]] = {
    "executor": set(),
    "processing": set(),
    "commit": {"executor"},
    "materialization": {"executor", "commit"},
    "task": {"executor", "processing", "commit", "materialization"},
    "driver": {"executor", "processing", "task"},
}
"""What a folder of `cairn/runtime` may import of the others."""
