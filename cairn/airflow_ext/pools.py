"""Names of the Airflow pools that Cairn's DAGs run in."""

from __future__ import annotations

MAINTENANCE_POOL = "cairn_maintenance"
"""Of every task that changes the metastore or deletes objects."""
