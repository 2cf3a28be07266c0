"""Two tenants of one metastore, and what their logins send."""

# ruff: noqa: S608 - names of the schema and of fixtures

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from sqlalchemy import Connection, NullPool, create_engine, make_url, text

from cairn.catalog.catalog import Catalog
from cairn.catalog.job.materializations import Materialized, record_end, record_start
from cairn.catalog.savepoints.pins import pin_checkpoint
from metastore.enums import PinKind
from tests.metastore.steps import Steps

ROLES = ("cairn_writer", "cairn_maintainer", "cairn_reader")


@dataclass
class Tenants:
    """A metastore with tenants `ours` and `theirs`, and a login of each role for each and none."""

    url: str
    suffix: str

    def login(self, tenant: str | None, role: str) -> str:
        user = f"{tenant or 'nobody'}_{role}_{self.suffix}"
        return make_url(self.url).set(username=user).render_as_string(False)

    def sql(self, statement: str) -> None:
        Catalog(self.url).run("testing", lambda c: c.execute(text(statement)))

    def job(self, tenant: str | None, storage: str) -> Steps:
        """Makes a job with five batches and a base, whose cleanup has something to do."""
        job = Steps(self.login(tenant, "cairn_writer"), storage)
        epoch = job.register(num_retained=2, file_retention_ms=0)
        for batch_id in range(5):
            job.whole_batch(epoch, batch_id)
        batch = job.ref(epoch, 5)
        job.begin(batch)
        made = uuid4()
        job.run(lambda c: record_start(c, batch, 0, made))
        base = job.base(batch, 5, (0, 8))
        job.install(batch, base)
        job.run(lambda c: record_end(c, made, Materialized.of([base[1]]), None))
        newest = job.whole_batch(epoch, 5)
        self.sql(
            "INSERT INTO cairn.damaged_segments (file_id, segment_id, job_id, damage)"
            " SELECT file_id, segment_id, job_id, 'corrupt' FROM cairn.placed_segments"
            f" WHERE job_id = '{job.job_id}'"
        )
        keep = partial(pin_checkpoint, job_name=job.name, checkpoint_id=newest - 1)
        job.run(lambda c: keep(c, pin_id=uuid4(), kind=PinKind.PIN, name=None))
        return job


def seen(url: str, relation: str) -> set[str]:
    """Returns the jobs whose rows a login sees."""
    found = text(f"SELECT DISTINCT job_id FROM cairn.{relation}")
    return set(Catalog(url).run("testing", lambda c: c.scalars(found).all()))


@contextmanager
def tenants_transaction(tenants: Tenants) -> Iterator[Connection]:
    """A transaction of a session of its own, as what it makes stays there."""
    engine = create_engine(tenants.login("ours", "cairn_writer"), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def forged(job: Steps, tenants: Tenants, tenant: str) -> Steps:
    """Returns the job's transactions as a login of another tenant would send them."""
    return Steps(
        tenants.login(tenant, "cairn_writer"),
        job.storage,
        job.name,
        job.job_id,
        job.parallelism,
        job.run_ids,
    )
