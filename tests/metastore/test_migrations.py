from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from cairn.catalog.catalog import Catalog
from cairn.catalog.migrate import (
    alembic_config,
    current_revision,
    head_revision,
    migrate,
    require_current,
)
from cairn.errors import RefusedError
from metastore.definitions import install_definitions
from metastore.models import SCHEMA, Base


def differences(connection: Connection) -> Sequence[object]:
    def in_our_schema(name: str | None, kind: str, _parents: object) -> bool:
        is_ours = kind != "schema" or name == SCHEMA
        return is_ours and (kind, name) != ("table", "alembic_version")

    context = MigrationContext.configure(
        connection,
        opts={
            "include_schemas": True,
            "include_name": in_our_schema,
            "compare_type": True,
            "compare_server_default": True,
        },
    )
    return list(compare_metadata(context, Base.metadata))


def checks(connection: Connection) -> dict[str, str]:
    """Every CHECK and index of the schema as the server words it, whoever made it."""
    rows = connection.execute(
        text(
            "SELECT conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) "
            "FROM pg_constraint WHERE connamespace = 'cairn'::regnamespace "
            "UNION ALL SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'cairn'"
        )
    )
    return {name: definition for name, definition in rows if "alembic_version" not in name}


def test_migrated_schema_is_the_models_schema(metastore_url: str) -> None:
    with Catalog(metastore_url).begin() as connection:
        assert differences(connection) == []


def test_migrated_constraints_and_indexes_read_as_the_models_do(
    metastore_url: str, empty_database_url: str
) -> None:
    with Catalog(empty_database_url).begin() as connection:
        connection.execute(text("CREATE SCHEMA cairn"))
        Base.metadata.create_all(connection)
        expected = checks(connection)
    with Catalog(metastore_url).begin() as connection:
        assert checks(connection) == expected


def test_revisions_form_one_line() -> None:
    script = ScriptDirectory.from_config(alembic_config())
    assert script.get_heads() == [head_revision()]


def test_migrating_applies_each_revision_once_and_then_nothing(empty_database_url: str) -> None:
    script = ScriptDirectory.from_config(alembic_config())
    in_order = [s.revision for s in reversed(list(script.walk_revisions()))]
    assert current_revision(Catalog(empty_database_url)) is None
    assert migrate(Catalog(empty_database_url)) == in_order
    assert migrate(Catalog(empty_database_url)) == []
    assert current_revision(Catalog(empty_database_url)) == head_revision()


def test_processes_that_migrate_at_once_share_the_work(empty_database_url: str) -> None:
    program = (
        "import sys; from cairn.catalog.catalog import Catalog\n"
        "from cairn.catalog.migrate import migrate; print(migrate(Catalog(sys.argv[1])))"
    )
    root = Path(__file__).parents[2]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, empty_database_url],
            cwd=root,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    printed = [process.communicate()[0].strip() for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert sorted(line == "[]" for line in printed) == [False, True, True, True]


def test_schema_that_is_missing_is_refused_with_the_command_to_run(
    empty_database_url: str,
) -> None:
    with pytest.raises(RefusedError, match=r"at revision none, .* run `cairn db migrate`"):
        require_current(Catalog(empty_database_url))


def test_schema_of_an_unknown_revision_is_neither_used_nor_migrated(metastore_url: str) -> None:
    require_current(Catalog(metastore_url))
    with Catalog(metastore_url).begin() as connection:
        connection.execute(text("UPDATE cairn.alembic_version SET version_num = '9999'"))
    with pytest.raises(RefusedError, match=r"9999, which .* upgrade Cairn, or use a new"):
        require_current(Catalog(metastore_url))
    with pytest.raises(RefusedError, match="9999"):
        migrate(Catalog(metastore_url))


def test_installing_the_definitions_again_restores_what_was_changed(metastore_url: str) -> None:
    with Catalog(metastore_url).begin() as connection:
        before = definitions(connection)
        connection.execute(text("DROP TRIGGER guard_subsumed ON cairn.checkpoints"))
        connection.execute(text("DROP FUNCTION cairn.refuse_subsumed"))
        connection.execute(text("DROP VIEW cairn.v_pins"))
        connection.execute(text("REVOKE SELECT ON cairn.v_jobs FROM cairn_reader"))
        assert definitions(connection) != before
        install_definitions(connection)
        assert definitions(connection) == before


def definitions(connection: Connection) -> set[str]:
    """Every trigger, function and view of the schema, and who may read which view."""
    return set(
        connection.scalars(
            text(
                "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal "
                "UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc "
                "WHERE pronamespace = 'cairn'::regnamespace "
                "UNION ALL SELECT definition FROM pg_views WHERE schemaname = 'cairn' "
                "UNION ALL SELECT relname || grantee::regrole || privilege_type FROM pg_class, "
                "aclexplode(relacl) WHERE relnamespace = 'cairn'::regnamespace"
            )
        )
    )
