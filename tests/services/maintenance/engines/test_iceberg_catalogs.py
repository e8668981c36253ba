"""Catalogs from configuration: what is refused, how addresses are made, and one spelling for each file."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog

from holdfast.errors import UsageError
from holdfast.services.maintenance.engines.catalogs import Catalogs, alchemy_url
from holdfast.services.maintenance.engines.interface import TableNotFound, TableRef
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from holdfast.services.maintenance.engines.pyiceberg.paths import normalised
from iceberg_tables import REF, create, fill


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lake": {"type": "excel"}}, "the type 'excel' is unknown"),
        ({"lake": {"type": "embedded"}}, "warehouse is missing"),
        ({"lake": {"type": "embedded", "warehouse": "/x"}}, "needs our Postgres"),
        ({"lake": {"type": "rest"}}, "uri is missing"),
        ({"a.b": {"type": "glue"}}, "without dots"),
    ],
)
def test_an_incomplete_catalog_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        Catalogs(given)


def test_an_unknown_catalog_names_the_known_ones(catalogs: Catalogs):
    with pytest.raises(UsageError, match="there is no catalog 'other'; the configured catalogs are lake"):
        catalogs.open("other")


def test_the_address_of_our_database_keeps_its_parts():
    made = alchemy_url("postgresql://me:p%40ss@db.example:6432/plane?sslmode=require")

    assert made.startswith("postgresql+psycopg://me:p%40ss@/plane?")
    assert {"host=db.example", "port=6432", "sslmode=require"} <= set(made.partition("?")[2].split("&"))


def test_tables_are_listed_with_nested_namespaces(engine: PyIcebergEngine, writer: Catalog):
    deep = TableRef("lake", "sales.europe", "orders")
    create(writer)
    create(writer, deep)

    assert sorted(engine.list_tables()) == sorted([REF, deep])


def test_a_missing_table_is_reported(engine: PyIcebergEngine):
    with pytest.raises(TableNotFound, match=r"there is no table lake\.sales\.nothing"):
        engine.stats(TableRef("lake", "sales", "nothing"))


def test_health_inputs_count_small_files(engine: PyIcebergEngine, writer: Catalog):
    create(writer, partitioned=True)
    fill(writer, 3, parts=2)

    found = engine.health_inputs(REF)

    assert (found.small_files, found.partitions, found.small_partitions) == (6, 2, 2)
    assert found.stats == engine.stats(REF)
    assert found.snapshots_over_5_days == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:/a/b", "file:///a/b"),
        ("/a/b", "file:/a/b"),
        ("s3a://bucket/x", "s3://bucket/x"),
        ("file:///a//b/../c", "/a/c"),
        ("file://localhost/a", "/a"),
    ],
)
def test_one_file_has_one_spelling(one, other):
    assert normalised(one) == normalised(other)


def test_keys_of_object_stores_are_not_changed():
    assert normalised("s3://bucket/a//b") != normalised("s3://bucket/a/b")
