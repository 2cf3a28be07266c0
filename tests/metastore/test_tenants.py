"""Two tenants of one metastore: each sees and changes its own jobs only, by whatever SQL."""

# ruff: noqa: S608 - names of the schema and of fixtures

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from cairn.catalog.catalog import Catalog, dispose_engines
from cairn.catalog.job.files import WrittenFile
from cairn.catalog.job.materializations import record_start
from cairn.catalog.jobs import job_names
from cairn.errors import BadInputError, CairnError, RefusedError
from cairn.maintenance.cleanup import cleanup_job
from cairn.savepoints.write_manifest import pin
from metastore.definitions import VIEWS, install_definitions
from metastore.enums import PinKind
from metastore.models import Base
from tests.metastore.steps import Steps
from tests.metastore.tenants import ROLES, Tenants, forged, seen, tenants_transaction

OF_JOBS = [t.name for t in Base.metadata.sorted_tables if "job_id" in t.columns]


@pytest.fixture(scope="module")
def tenants(shared_metastore_url: str) -> Iterator[Tenants]:
    made = Tenants(shared_metastore_url, uuid4().hex[:8])
    users = []
    for tenant in ("ours", "theirs"):
        made.sql(f"CREATE ROLE {tenant}_{made.suffix} NOLOGIN")
        made.sql(f"INSERT INTO cairn.tenants (name) VALUES ('{tenant}_{made.suffix}')")
    for tenant in ("ours", "theirs", "nobody", "operator"):
        for role in ROLES:
            user = f"{tenant}_{role}_{made.suffix}"
            of = {"nobody": "", "operator": ", cairn_operator"}
            member = of.get(tenant, f", {tenant}_{made.suffix}")
            made.sql(f"CREATE ROLE {user} LOGIN IN ROLE {role}{member}")
            users.append(user)
    yield made
    dispose_engines()
    made.sql(f"DROP ROLE {', '.join([*users, f'ours_{made.suffix}', f'theirs_{made.suffix}'])}")


@pytest.fixture(scope="module")
def jobs(tenants: Tenants, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Steps]:
    storage = tmp_path_factory.mktemp("storage").as_uri()
    made = {tenant: tenants.job(tenant, storage) for tenant in ("ours", "theirs", "operator")}
    for tenant, job in made.items():
        for path in job.sql("SELECT path FROM cairn.physical_files WHERE job_id = :job"):
            file = tmp_path_factory.getbasetemp() / storage.rpartition("/")[2] / path[0]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x")
        cleanup_job(Catalog(tenants.login(tenant, "cairn_maintainer")), job.name)
        quarantine = (
            "INSERT INTO cairn.quarantined_objects (quarantine_id, job_id, path, reason,"
            " size_bytes, version, modified_at, maintenance_run_id, quarantined_until) VALUES"
            f" (gen_random_uuid(), '{job.job_id}', '{job.job_id}/a', 'a test', 1, '1', now(),"
            " gen_random_uuid(), now() + INTERVAL '7 days')"
        )
        tenants.sql(
            "INSERT INTO cairn.maintenance_decisions (maintenance_run_id, decision, reason, job_id)"
            " SELECT maintenance_run_id, 'SKIPPED', 'a test', job_id FROM cairn.maintenance_runs"
            f" WHERE job_id = '{job.job_id}' LIMIT 1"
        )
        tenants.sql(
            "INSERT INTO cairn.run_requests (request_id, job_id, kind)"
            f" VALUES (gen_random_uuid(), '{job.job_id}', 'stop')"
        )
        sweeper = Catalog(tenants.login(tenant, "cairn_maintainer"))
        sweeper.run("setting aside", lambda c: c.execute(text(quarantine)))  # noqa: B023
    return made


RELATIONS = [*(path.stem for path in VIEWS), *OF_JOBS]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_tenant_sees_its_own_jobs_in_every_table_and_view(
    tenants: Tenants, jobs: dict[str, Steps], relation: str, role: str
) -> None:
    everybody = {job.job_id for job in jobs.values()}
    everybody &= seen(tenants.url, relation)
    for tenant in ("ours", "theirs"):
        own = {jobs[tenant].job_id} & everybody
        assert seen(tenants.login(tenant, role), relation) == own
    assert seen(tenants.login(None, role), relation) == set()
    assert seen(tenants.login("operator", role), relation) == everybody


def test_there_is_something_to_see_in_most_tables_and_views(
    tenants: Tenants, jobs: dict[str, Steps]
) -> None:
    with_rows = {relation for relation in RELATIONS if seen(tenants.url, relation)}
    assert len(with_rows) >= len(RELATIONS) - 8, set(RELATIONS) - with_rows


def test_every_table_with_a_job_has_a_policy_that_is_in_force(tenants: Tenants) -> None:
    off = text(
        "SELECT c.relname FROM pg_class AS c WHERE relnamespace = 'cairn'::regnamespace"
        " AND relkind = 'r' AND NOT (relrowsecurity AND EXISTS (SELECT FROM pg_policy AS p"
        " WHERE p.polrelid = c.oid))"
    )
    found = set(Catalog(tenants.url).run("testing", lambda c: c.scalars(off).all()))
    assert found == {"alembic_version", "metastore", "tenants"}, "all others have rows of jobs"


def test_no_view_and_no_function_but_those_that_ask_has_its_owners_rights(tenants: Tenants) -> None:
    definers = text(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'cairn'::regnamespace AND prosecdef"
        " AND prorettype <> 'trigger'::regtype AND pronargs > 0"
        " UNION ALL SELECT relname FROM pg_class"
        " WHERE relnamespace = 'cairn'::regnamespace AND relkind IN ('v', 'm')"
        " AND 'security_invoker=true' <> ALL (coalesce(reloptions, '{}'))"
    )
    found = set(Catalog(tenants.url).run("testing", lambda c: c.scalars(definers).all()))
    guarded = {"covered_until", "released_at", "uncovered_changelog"}
    guarded |= {"kept_checkpoints", "live_ranges", "live_space"}
    assert found == guarded | {"is_visible"}


@pytest.mark.parametrize("table", OF_JOBS)
def test_a_tenant_changes_and_deletes_no_row_of_another(
    tenants: Tenants, jobs: dict[str, Steps], table: str
) -> None:
    theirs = jobs["theirs"].job_id
    before = jobs["theirs"].dump()
    for role in ("cairn_writer", "cairn_maintainer"):
        catalog = Catalog(tenants.login("ours", role))
        for statement in (
            f"DELETE FROM cairn.{table} WHERE job_id = '{theirs}'",
            f"UPDATE cairn.{table} SET status = status WHERE job_id = '{theirs}'",
            f"INSERT INTO cairn.{table} SELECT * FROM cairn.{table} WHERE job_id = '{theirs}'",
        ):
            with suppress(BadInputError, ProgrammingError):  # no right, or no such column
                execute = partial(Connection.execute, statement=text(statement))
                assert catalog.run("testing", execute).rowcount == 0
    assert jobs["theirs"].dump() == before


def test_a_tenant_makes_no_row_in_another_ones_job(
    tenants: Tenants, jobs: dict[str, Steps]
) -> None:
    ours, theirs = jobs["ours"], jobs["theirs"]
    for statement in (
        "INSERT INTO cairn.runs (job_id, epoch, run_id, parallelism)"
        " VALUES (:other, 99, gen_random_uuid(), 2)",
        "INSERT INTO cairn.directories (job_id, path, scope, epoch)"
        " VALUES (:other, :other || '/shared/subtask-0-9', 'shared', 1)",
        "INSERT INTO cairn.physical_files (file_id, job_id, epoch, path, scope) VALUES"
        " (gen_random_uuid(), :other, 1, :other || '/chk-99/_metadata', 'shared')",
        "INSERT INTO cairn.jobs (job_id, name, storage, max_parallelism, num_retained, key_schema,"
        " tenant) VALUES ('evil-00000001', 'evil', 's3://x', 8, 2, '{}', 'theirs_' || :suffix)",
    ):
        with pytest.raises(BadInputError, match="row-level security"):
            ours.sql(statement, other=theirs.job_id, suffix=tenants.suffix)


def test_no_function_writes_for_another_tenant(tenants: Tenants, jobs: dict[str, Steps]) -> None:
    theirs = jobs["theirs"]
    before = theirs.dump()
    intruder = forged(theirs, tenants, "ours")
    epoch = max(theirs.run_ids)
    batch = theirs.ref(epoch, 6)
    handle = theirs.changelog(epoch, 7, 0, 0)
    for work in (
        lambda: intruder.begin(batch),
        lambda: intruder.intend(batch),
        lambda: intruder.commit(batch, 7, [], None),
        intruder.register,
        lambda: intruder.run(lambda c: record_start(c, batch, 0, uuid4())),
        lambda: intruder.install(batch, (WrittenFile(str(uuid4()), 1), handle)),
        lambda: pin(intruder.catalog, theirs.name, None, kind=PinKind.PIN),
    ):
        # No job, or no row of it: whichever is asked first.
        with pytest.raises((CairnError, DBAPIError), match=r"no job|another tenant|no rows"):
            work()
    assert theirs.dump() == before


def test_functions_that_read_tell_nothing_of_another_tenants_job(
    tenants: Tenants, jobs: dict[str, Steps]
) -> None:
    theirs = jobs["theirs"].job_id
    [(file_id,)] = jobs["theirs"].sql(
        "SELECT file_id FROM cairn.physical_files WHERE job_id = :job AND live_segments > 0 LIMIT 1"
    )
    for call in (
        "cairn.covered_until(:other, NULL)",
        "cairn.released_at(:other, '{[0,8)}', 1)",
        "(SELECT count(*) FROM cairn.uncovered_changelog(:other, NULL) HAVING count(*) > 0)",
        "(SELECT count(*) FROM cairn.kept_checkpoints(:other) HAVING count(*) > 0)",
        f"(SELECT count(*) FROM cairn.live_ranges(:other, '{file_id}') HAVING count(*) > 0)",
        "(SELECT nullif(live_bytes + pinned_bytes, 0) FROM cairn.live_space(:other))",
    ):
        query = f"SELECT {call}"
        assert jobs["theirs"].sql(query, other=theirs) != [(None,)], call
        assert jobs["ours"].sql(query, other=theirs) == [(None,)], call


@pytest.mark.parametrize("type_", ["text", "bigint", "regclass"])
@pytest.mark.parametrize("call", ["cairn.database_id()", "cairn.timeline()", "cairn.own_jobs()"])
def test_no_function_runs_what_a_login_has_made_with_the_rights_of_its_owner(
    tenants: Tenants, jobs: dict[str, Steps], type_: str, call: str
) -> None:
    """Types and tables of a session come before those of the catalog, unless a path says so."""

    def trap(connection: Connection) -> object:
        for statement in (
            "CREATE FUNCTION pg_temp.tells(v text) RETURNS boolean LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION USING MESSAGE = 'this is run as ' || current_user; END $$",
            f"CREATE DOMAIN pg_temp.{type_} AS pg_catalog.{type_} CHECK (pg_temp.tells('x'))"
            if type_ != "bigint"
            else "CREATE DOMAIN pg_temp.int8 AS pg_catalog.int8 CHECK (pg_temp.tells('x'))",
            "CREATE VIEW pg_temp.pg_database AS SELECT CAST(1 AS oid) AS oid,"
            " CAST(current_database() AS name) AS datname WHERE pg_temp.tells('x')",
        ):
            connection.exec_driver_sql(statement)
        return connection.scalar(text(f"SELECT {call}"))

    with tenants_transaction(tenants) as connection:
        assert trap(connection) is not None


def test_every_function_looks_for_names_in_the_catalog_first(tenants: Tenants) -> None:
    # Not those whose names were found when they were made.
    others = text(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'cairn'::regnamespace"
        " AND prosqlbody IS NULL"
        " AND 'search_path=pg_catalog, pg_temp' <> ALL (coalesce(proconfig, '{}'))"
    )
    found = Catalog(tenants.url).run("testing", lambda c: c.scalars(others).all())
    assert found == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "INSERT INTO cairn.physical_files (file_id, job_id, epoch, path, scope, retry_of)"
            " SELECT gen_random_uuid(), :job, 1, :job || '/chk-99/_metadata', 'shared',"
            " CAST(:theirs AS uuid)",
            "a retry is of a file of its own job",
        ),
        (
            "INSERT INTO cairn.jobs (job_id, name, storage, max_parallelism, num_retained,"
            " key_schema) SELECT 'squatter-00000001', :theirs, 's3://x', 8, 2, '{}'",
            "is the id of another job",
        ),
        (
            "UPDATE cairn.jobs SET name = :theirs WHERE job_id = :job",
            "a run that is not over|is the id of another job",
        ),
    ],
    ids=["a file", "a name", "a new name"],
)
def test_a_tenant_refers_to_no_row_of_another(
    tenants: Tenants, jobs: dict[str, Steps], statement: str, said: str
) -> None:
    theirs = jobs["theirs"]
    [(file_id,)] = theirs.sql(
        "SELECT CAST(file_id AS text) FROM cairn.physical_files WHERE job_id = :job"
        " AND retry_of IS NULL LIMIT 1"
    )
    role = "cairn_maintainer" if statement.startswith("UPDATE") else "cairn_writer"
    ours = Steps(tenants.login("ours", role), jobs["ours"].storage, "x", jobs["ours"].job_id)
    known = file_id if "retry_of" in statement else theirs.job_id
    with pytest.raises(RefusedError, match=said):
        ours.sql(statement, theirs=known)


def test_a_tenant_deletes_by_no_plan_of_another(tenants: Tenants, jobs: dict[str, Steps]) -> None:
    of = "SELECT CAST(maintenance_run_id AS text) FROM cairn.maintenance_runs WHERE job_id = :job"
    (plan_id,) = jobs["theirs"].sql(f"{of} LIMIT 1")[0]
    job = jobs["ours"]
    file = job.intend(job.ref(max(job.run_ids), 5))
    maintainer = replace(job, url=tenants.login("ours", "cairn_maintainer"))
    with pytest.raises(RefusedError, match="of a plan of its own job"):
        maintainer.sql(
            "WITH c AS (UPDATE cairn.physical_files SET status = 'CONDEMNED'"
            " WHERE file_id = CAST(:file AS uuid) RETURNING file_id, job_id, path)"
            " INSERT INTO cairn.deletions (file_id, job_id, path, maintenance_run_id)"
            " SELECT file_id, job_id, path, CAST(:plan AS uuid) FROM c",
            file=file.file_id,
            plan=plan_id,
        )


def test_nobody_sees_more_by_another_role_or_path(tenants: Tenants, jobs: dict[str, Steps]) -> None:
    url = tenants.login("ours", "cairn_writer")

    def as_role(connection: Connection) -> set[str]:
        connection.execute(text("SET LOCAL ROLE cairn_writer"))
        return set(connection.scalars(text("SELECT job_id FROM cairn.jobs")))

    assert Catalog(url).run("testing", as_role) == {jobs["ours"].job_id}
    with pytest.raises(BadInputError, match="permission denied"):
        Catalog(url).run("testing", lambda c: c.execute(text("SET ROLE cairn_operator")))


def test_a_job_is_of_the_tenant_who_made_it_for_good(
    tenants: Tenants, jobs: dict[str, Steps]
) -> None:
    query = "SELECT tenant FROM cairn.jobs WHERE job_id = :job"
    for tenant in ("ours", "theirs"):
        assert jobs[tenant].sql(query) == [(f"{tenant}_{tenants.suffix}",)]
    assert jobs["operator"].sql(query) == [(None,)]
    with pytest.raises(CairnError, match="permission denied"):
        jobs["ours"].sql("UPDATE cairn.jobs SET tenant = NULL WHERE job_id = :job")


def test_a_name_that_another_tenant_has_is_refused_and_says_no_more(
    tenants: Tenants, jobs: dict[str, Steps]
) -> None:
    ours = Steps(jobs["ours"].url, jobs["ours"].storage, jobs["theirs"].name)
    with pytest.raises(BadInputError, match="another tenant of the metastore has a job") as no:
        ours.register()
    assert jobs["theirs"].job_id not in str(no.value)


def test_a_tenants_maintainer_cleans_its_jobs_and_knows_no_others(
    tenants: Tenants, jobs: dict[str, Steps]
) -> None:
    catalog = Catalog(tenants.login("ours", "cairn_maintainer"))
    assert catalog.run("listing", job_names) == [jobs["ours"].name]
    with pytest.raises(BadInputError, match=f"no job '{jobs['theirs'].name}'"):
        cleanup_job(catalog, jobs["theirs"].name)
    statuses = jobs["ours"].statuses()
    assert sorted(statuses.values()).count("SUBSUMED") == 3


def test_a_tenant_without_a_role_is_refused(tenants: Tenants) -> None:
    with pytest.raises(CairnError, match="there is no role nobody_knows"):
        tenants.sql("INSERT INTO cairn.tenants (name) VALUES ('nobody_knows')")


def test_a_migration_leaves_tenants_apart(tenants: Tenants, jobs: dict[str, Steps]) -> None:
    Catalog(tenants.url).run("installing", install_definitions)
    url = tenants.login("ours", "cairn_reader")
    for relation in RELATIONS:
        assert seen(url, relation) <= {jobs["ours"].job_id}, relation
