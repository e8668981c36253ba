"""The tables of the embedded catalog are made by a migration, and are those that PyIceberg would make."""

from __future__ import annotations

import psycopg
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from sqlalchemy import create_engine

from holdfast.services.maintenance.engines.catalogs import alchemy_url
from holdfast.services.maintenance.engines.pyiceberg.fence_sql import SCHEMA

SHAPE = """
    SELECT table_name, column_name, data_type, character_maximum_length, is_nullable FROM information_schema.columns
    WHERE table_schema = %s ORDER BY 1, 2
"""
KEYS = """
    SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE contype = 'p' AND connamespace = %s::regnamespace ORDER BY 1
"""


def test_the_migration_makes_the_tables_of_pyiceberg(fresh_database: str) -> None:
    engine = create_engine(alchemy_url(fresh_database))
    SqlCatalogBaseTable.metadata.create_all(engine)  # in the schema `public`
    engine.dispose()

    with psycopg.connect(fresh_database) as conn:
        ours, theirs = (conn.execute(SHAPE, [schema]).fetchall() for schema in (SCHEMA, "public"))
        our_keys, their_keys = (conn.execute(KEYS, [schema]).fetchall() for schema in (SCHEMA, "public"))

    assert ours == theirs != []
    assert [key for _, key in our_keys] == [key for _, key in their_keys]
