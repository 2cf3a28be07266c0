"""A job whose query has ended, to be dropped or renamed, and what is there of it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url, text

from cairn.catalog.catalog import Catalog
from cairn.catalog.cleanup.drop import rename_job
from cairn.catalog.job.run_ends import record_run_end
from cairn.maintenance.drop import DropReport, drop_job, find_job_to_drop
from metastore.models import Base
from tests.runtime.file_rows import rows
from tests.runtime.merging_stream import Stream


def ended_stream(url: str, storage: str, local_dir: Path) -> Stream:
    """Returns a query that has made some checkpoints, and has ended."""
    made = Stream(url, storage, str(local_dir))
    made.restart(parallelism=2)
    for number in range(4):
        made.batch(materializes=number == 2)
    end(made)
    return made


def as_role(stream: Stream, role: str) -> Catalog:
    url = make_url(stream.url).update_query_dict({"options": f"-c role={role}"})
    return Catalog(url.render_as_string(hide_password=False))


def end(stream: Stream) -> None:
    stream.plan.catalog.run("testing", lambda c: record_run_end(c, stream.plan.ref))


def drop(stream: Stream, name: str = "words", *, dry_run: bool = False) -> DropReport:
    catalog = stream.plan.catalog
    return drop_job(catalog, find_job_to_drop(catalog, name), dry_run=dry_run)


def sql(stream: Stream, statement: str) -> None:
    with stream.plan.catalog.begin() as connection:
        connection.execute(
            text(statement), {"job": stream.plan.job_id} if ":job" in statement else {}
        )


def everything(stream: Stream) -> dict[str, list[str]]:
    """Returns every row of the metastore's tables, by table, as text."""
    return {
        str(table): sorted(
            rows(stream.plan, f"SELECT CAST(to_jsonb(t) AS text) FROM {table} AS t")  # noqa: S608
        )
        for table in Base.metadata.sorted_tables
    }


def rows_of_job(stream: Stream) -> dict[str, int]:
    """Returns how many rows each table has of the job, but for those without any."""
    of_job = [t for t in Base.metadata.sorted_tables if "job_id" in t.columns]
    counted = {
        str(t): rows(stream.plan, f"SELECT count(*) FROM {t} WHERE job_id = :job")[0]  # noqa: S608
        for t in of_job
    }
    return {name: count for name, count in counted.items() if count}


def root(stream: Stream) -> Path:
    return Path(stream.storage.removeprefix("file://")) / stream.plan.job_id


def rename(stream: Stream, old: str, new: str, role: str = "postgres") -> None:
    catalog = as_role(stream, role)
    job_id = find_job_to_drop(catalog, old).job_id
    catalog.run("testing", lambda c: rename_job(c, job_id, new))
