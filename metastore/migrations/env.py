"""Runs inside Alembic: migrates on the connection that `cairn.catalog.migrate` hands over."""

from __future__ import annotations

from alembic import context

from metastore.models import SCHEMA, Base


def _in_our_schema(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "schema" or name == SCHEMA


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
    include_name=_in_our_schema,
    compare_server_default=True,
    on_version_apply=context.config.attributes.get("on_version_apply", ()),
)
with context.begin_transaction():
    context.run_migrations()
