"""Which engines and catalogs the settings describe, and how they are opened. No remote engine is contacted."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.services.maintenance.opening import configured_catalogs, configured_engines, open_engine, properties_of
from holdfast.services.maintenance.settings import MaintenanceSettings
from holdfast.settings import settings_class


def given(**values: Any) -> MaintenanceSettings:
    made = settings_class()(**values)
    assert isinstance(made, MaintenanceSettings)
    return made


def test_embedded_catalog_and_engine_are_the_defaults():
    found = given(iceberg_warehouse="s3://bucket/lake")

    assert configured_engines(found) == ("pyiceberg",)
    assert properties_of(found) == {"default": {"type": "embedded", "warehouse": "s3://bucket/lake"}}
    assert properties_of(given(iceberg_warehouse="tables"))["default"]["warehouse"].startswith("file:///")


def test_remote_engines_need_an_address():
    found = given(
        trino_url="http://127.0.0.1:8080",
        trino_user="holdfast",
        spark_connect_url="sc://127.0.0.1:15002",
        iceberg_catalogs={"lake": {"type": "rest", "uri": "http://127.0.0.1:1"}},
        maintenance_trino_catalogs={"lake": "iceberg", "old": "hive"},
    )

    engines = [open_engine(name, found, None) for name in ("trino", "spark")]

    assert configured_engines(found) == ("pyiceberg", "trino", "spark")
    assert configured_catalogs(found) == ("lake", "old")
    assert [(engine.name, engine.supports("compute_statistics")) for engine in engines] == [("trino", True), ("spark", True)]
    over_thrift = given(spark_thrift_url="thrift://127.0.0.1:10000", spark_thrift_password="x", spark_thrift_user="me")
    assert configured_engines(over_thrift) == ("pyiceberg", "spark")
    assert open_engine("spark", over_thrift, None).name == "spark"
    with pytest.raises(UsageError, match="HOLDFAST_SPARK_THRIFT_URL are both set; unset one of them"):
        configured_engines(given(spark_connect_url="sc://spark:15002", spark_thrift_url="thrift://spark:10000"))
    with pytest.raises(UsageError, match="use thrift://host:10000 or thrifts://"):
        open_engine("spark", given(spark_thrift_url="jdbc:hive2://spark:10000"), None)
    with pytest.raises(UsageError, match="the engine trino is not configured"):
        open_engine("trino", given(), None)
    with pytest.raises(UsageError, match="sc://host:port"):
        open_engine("spark", given(spark_connect_url="http://127.0.0.1"), None)
