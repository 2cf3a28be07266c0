"""Lets time pass for the rows of a job."""

from __future__ import annotations

from sqlalchemy import Connection, DateTime, text

from cairn.catalog.catalog import Catalog
from metastore.models import Base


def let_time_pass(url: str, job_id: str, interval: str) -> None:
    """Makes all rows of a job older by an interval, such as '8 days'."""

    def work(connection: Connection) -> None:
        # Without triggers: what happened when is part of a group commit's identity.
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        for table in Base.metadata.sorted_tables:
            moments = [c.name for c in table.columns if isinstance(c.type, DateTime)]
            if moments and "job_id" in table.columns:
                changes = ", ".join(f"{name} = {name} - interval '{interval}'" for name in moments)
                update = f"UPDATE {table} SET {changes} WHERE job_id = :job"  # noqa: S608
                connection.execute(text(update), {"job": job_id})

    Catalog(url).run("letting time pass", work)
