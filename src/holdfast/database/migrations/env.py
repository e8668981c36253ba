"""Alembic's entry: run the migrations on the connection that `database/migrate.py` hands over, or print them as SQL."""

from __future__ import annotations

from alembic import context

SCHEMA = "holdfast"


def run() -> None:
    connection = context.config.attributes.get("connection")
    if connection is None:
        context.configure(dialect_name="postgresql", literal_binds=True, version_table_schema=SCHEMA)
    else:
        context.configure(connection=connection, version_table_schema=SCHEMA, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


run()
