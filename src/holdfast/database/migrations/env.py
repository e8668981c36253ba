"""Alembic's entry: run the migrations on the connection that `database/migrate.py` hands over, or print them as SQL."""

from __future__ import annotations

from typing import Any

from alembic import context

from holdfast.crashpoints import crashpoint

SCHEMA = "holdfast"


def _in_the_middle(*_: Any, **__: Any) -> None:
    """Alembic calls it in the transaction of each migration, after its statements."""
    crashpoint("migrate.mid")


def run() -> None:
    connection = context.config.attributes.get("connection")
    if connection is None:
        context.configure(dialect_name="postgresql", literal_binds=True, version_table_schema=SCHEMA)
    else:
        context.configure(
            connection=connection, version_table_schema=SCHEMA, transaction_per_migration=True, on_version_apply=_in_the_middle
        )
    with context.begin_transaction():
        context.run_migrations()


run()
