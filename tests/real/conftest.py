"""Against the real thing: `make test-real`. Nothing here runs, or is even collected, without being asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fetching import free_port
from lake_servers import RestServer, SparkServer, fetch_client
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog import Catalog
from trino_cluster import Store, TrinoCluster

from databases import cloned, new_database
from holdfast.engines.trino import TrinoOptions, open_trino
from holdfast.engines.trino.engine import TrinoEngine
from holdfast.engines.trino.sql import identifier, literal
from holdfast.services.maintenance.engines.catalogs import Catalogs
from holdfast.services.maintenance.engines.interface import Engine
from holdfast.services.maintenance.engines.pyiceberg.engine import PyIcebergEngine
from holdfast.services.maintenance.engines.spark import SparkMaintenance
from holdfast.services.maintenance.engines.spark_connect import ConnectLink
from holdfast.services.maintenance.engines.spark_thrift import ThriftLink, ThriftOptions
from holdfast.services.maintenance.engines.trino import TrinoMaintenance
from holdfast.services.maintenance.opening import clock_of
from iceberg_tables import end_threads

collect_ignore_glob = [] if os.environ.get("HOLDFAST_TEST_REAL") else ["test_real_*.py"]


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    """An S3 server for spooled segments."""
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    port = free_port()
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{port}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    client.create_bucket(Bucket="spool")
    yield Store(endpoint, "spool")
    server.stop()


@pytest.fixture(scope="session")
def cluster(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrinoCluster]:
    """One Trino for the whole run."""
    folder: Path = tmp_path_factory.mktemp("trino")
    cluster = TrinoCluster(folder, store)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
async def engines(cluster: TrinoCluster, store: Store) -> AsyncIterator[Callable[..., TrinoEngine]]:
    """Opens engines that are closed after the test."""
    async with AsyncExitStack() as stack:

        def open_one(**more: Any) -> TrinoEngine:
            usual = {"role_required": False, "segment_origins": (store.endpoint,), "ctas_schema": "lake.exports"}
            engine = open_trino(TrinoOptions(cluster.url, "export", **{**usual, **more}))
            stack.push_async_callback(engine.close)
            return engine

        yield open_one


@pytest.fixture
def engine(engines: Callable[..., TrinoEngine]) -> TrinoEngine:
    return engines()


# ---------------------------------------------------------------------------------------------------------------------
# Tables: a lake in a REST catalog and one in our Postgres, each shared by PyIceberg, Spark and Trino
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    """One REST catalog for the whole run."""
    server = RestServer(tmp_path_factory.mktemp("rest"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def lakes(
    rest: RestServer, server: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, dict[str, str]]]:
    """The properties of both lakes for PyIceberg; `url` is the database of the embedded one."""
    folder = tmp_path_factory.mktemp("lake")
    with new_database(server, cloned(template)) as url:
        yield {
            "rest": {"type": "rest", "uri": rest.url},
            "embedded": {"type": "embedded", "warehouse": f"file://{folder}"},
            "": {"url": url},
        }


@pytest.fixture(scope="session")
def spark(lakes: dict[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    """One Spark for the whole run."""
    login = conninfo_to_dict(lakes[""]["url"])
    jdbc = {"type": "jdbc", "uri": jdbc_url(lakes[""]["url"]), "jdbc.schema-version": "V1"}
    jdbc |= {"jdbc.user": str(login["user"]), "jdbc.password": str(login["password"])}
    jdbc |= {"warehouse": lakes["embedded"]["warehouse"]}
    catalogs = {"rest": {"type": "rest", "uri": lakes["rest"]["uri"]}, "embedded": jdbc}
    server = SparkServer(tmp_path_factory.mktemp("spark"), catalogs=catalogs)
    sys.path.append(str(fetch_client()))
    try:
        server.start(thrift=True)
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def lake_trino(cluster: TrinoCluster, lakes: dict[str, dict[str, str]]) -> TrinoMaintenance:
    """Trino, which now knows both lakes."""
    login = conninfo_to_dict(lakes[""]["url"])
    engine = TrinoMaintenance(TrinoOptions(cluster.url, "maintenance", role_required=False), {"rest": "rest", "embedded": "pg"})
    files = {"fs.hadoop.enabled": "true"}
    rest = {"iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": lakes["rest"]["uri"], **files}
    jdbc = {"iceberg.catalog.type": "jdbc", "iceberg.jdbc-catalog.driver-class": "org.postgresql.Driver", **files}
    jdbc |= {"iceberg.jdbc-catalog.connection-url": jdbc_url(lakes[""]["url"]), "iceberg.jdbc-catalog.catalog-name": "embedded"}
    jdbc |= {"iceberg.jdbc-catalog.connection-user": str(login["user"])}
    jdbc |= {"iceberg.jdbc-catalog.connection-password": str(login["password"])}
    jdbc |= {"iceberg.jdbc-catalog.default-warehouse-dir": lakes["embedded"]["warehouse"]}
    for name, properties in {"rest": rest, "pg": jdbc}.items():
        given = ", ".join(f"{identifier(key)} = {literal(value)}" for key, value in properties.items())
        engine.query(f"CREATE CATALOG {name} USING iceberg WITH ({given})", "holdfast-look")
    return engine


def jdbc_url(url: str) -> str:
    """The schema of the embedded catalog, as Java programs name it."""
    parts = conninfo_to_dict(url)
    return f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}?currentSchema=holdfast_iceberg"


@pytest.fixture(scope="session")
def lake_engines(
    lakes: dict[str, dict[str, str]], spark: SparkServer, lake_trino: TrinoMaintenance
) -> Iterator[dict[str, Engine]]:
    """The three engines, each with both lakes; Spark also over Thrift."""
    given = {name: properties for name, properties in lakes.items() if name}
    catalogs = Catalogs(given, database_url=lakes[""]["url"])
    names = {"rest": "rest", "embedded": "embedded"}
    engines: dict[str, Engine] = {
        "pyiceberg": PyIcebergEngine(catalogs, clock_of(lakes[""]["url"])),
        "spark": SparkMaintenance(ConnectLink(spark.url), names),
        "spark_thrift": SparkMaintenance(ThriftLink(ThriftOptions(spark.thrift_url)), names),
        "trino": lake_trino,
    }
    yield engines
    for engine in engines.values():
        engine.close()
    end_threads()


@pytest.fixture(scope="session")
def writers(lakes: dict[str, dict[str, str]]) -> Iterator[dict[str, Catalog]]:
    """Both catalogs as other programs see them."""
    catalogs = Catalogs({name: given for name, given in lakes.items() if name}, database_url=lakes[""]["url"])
    yield {name: catalogs.open_for_writers(name) for name in ("rest", "embedded")}
    catalogs.close()
