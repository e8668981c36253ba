"""Open engines as the settings describe them. Called by: `setup.py`, the checks of `holdfast doctor`, the demo.

The packages of the engines are imported when they are opened, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast.database.pool import connect_sync
from holdfast.engines.trino.options import TrinoOptions
from holdfast.errors import UsageError
from holdfast.extras import loaded
from holdfast.services.maintenance.engines.catalogs import DEFAULT, EMBEDDED, Catalogs
from holdfast.services.maintenance.engines.interface import Engine
from holdfast.services.maintenance.settings import MaintenanceSettings
from holdfast.stores.opening import StoreOptions

FAR_AWAY_MS: Final = "4102444800000"  # 2100: PyArrow wants to know when a token ends, and a file does not say it
NOW_MS = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def configured_engines(settings: MaintenanceSettings) -> tuple[str, ...]:
    """The names of the engines that can be used. Pure."""
    if settings.spark_connect_url is not None and settings.spark_thrift_url is not None:
        raise UsageError("HOLDFAST_SPARK_CONNECT_URL and HOLDFAST_SPARK_THRIFT_URL are both set; unset one of them")
    remote = {"trino": settings.trino_url, "spark": settings.spark_connect_url or settings.spark_thrift_url}
    return ("pyiceberg", *(name for name, address in remote.items() if address is not None))


def properties_of(settings: MaintenanceSettings) -> dict[str, dict[str, str]]:
    """The properties of each catalog by name; by default one in our own Postgres, with its files in a folder. Pure."""
    if settings.iceberg_catalogs:
        return settings.iceberg_catalogs
    place = settings.iceberg_warehouse
    warehouse = place if "://" in place else Path(place).expanduser().absolute().as_uri()
    return {DEFAULT: {"type": EMBEDDED, "warehouse": warehouse}}


def configured_catalogs(settings: MaintenanceSettings) -> tuple[str, ...]:
    """The names of the catalogs, the default first. Pure."""
    return tuple({**properties_of(settings), **settings.maintenance_trino_catalogs, **settings.maintenance_spark_catalogs})


def open_catalogs(settings: MaintenanceSettings, url: str | None) -> Catalogs:
    """The configured catalogs. `url` is our database, for catalogs of the type `embedded`."""
    shared = file_properties(settings)
    # A catalog without properties is described in PyIceberg's own configuration, which must not be overridden.
    given = {name: {**shared, **own} if own else own for name, own in properties_of(settings).items()}
    return Catalogs(given, database_url=url)


def file_properties(settings: MaintenanceSettings) -> dict[str, str]:
    """The endpoints and credentials of the shared stores, as PyIceberg names them. A catalog's own properties come first."""
    stores = StoreOptions.from_settings(settings)
    s3, gcs = stores.s3.read().options, stores.gcs.read().options
    found = {f"s3.{name.replace('_', '-')}": str(value) for name, value in s3.items()}
    if "base_url" in gcs:
        found["gcs.service.host"] = gcs["base_url"]
    if "bearer_token" in gcs:
        found |= {"gcs.oauth2.token": gcs["bearer_token"], "gcs.oauth2.token-expires-at": FAR_AWAY_MS}
    return found


def open_engine(name: str, settings: MaintenanceSettings, url: str | None) -> Engine:
    """Open an engine. The embedded catalog is in the database at `url`. Blocks."""
    if name == "pyiceberg":
        module = loaded("holdfast.services.maintenance.engines.pyiceberg.engine", extra="maintenance")
        engine: Engine = module.PyIcebergEngine(open_catalogs(settings, url), clock_of(url))
        return engine
    if name not in configured_engines(settings):
        raise UsageError(f"the engine {name} is not configured; use one of {', '.join(configured_engines(settings))}")
    return OPENERS[name](settings)


def _open_trino(settings: MaintenanceSettings) -> Engine:
    options = TrinoOptions.from_settings(settings)
    catalogs = _named(settings, settings.maintenance_trino_catalogs)
    module = loaded("holdfast.services.maintenance.engines.trino", extra="maintenance")
    engine: Engine = module.TrinoMaintenance(options, catalogs, role=settings.maintenance_trino_role)
    return engine


def _open_spark(settings: MaintenanceSettings) -> Engine:
    module = loaded("holdfast.services.maintenance.engines.spark", extra="maintenance")
    link = _thrift_link(settings) if settings.spark_connect_url is None else _connect_link(settings.spark_connect_url)
    engine: Engine = module.SparkMaintenance(link, _named(settings, settings.maintenance_spark_catalogs))
    return engine


def _connect_link(url: str) -> Any:
    return loaded("holdfast.services.maintenance.engines.spark_connect").ConnectLink(url)


def _thrift_link(settings: MaintenanceSettings) -> Any:
    module = loaded("holdfast.services.maintenance.engines.spark_thrift")
    assert settings.spark_thrift_url is not None
    password, ca_file = settings.spark_thrift_password, settings.spark_thrift_ca_file
    options = module.ThriftOptions(
        settings.spark_thrift_url,
        settings.spark_thrift_user,
        password.get_secret_value() if password else None,
        settings.spark_thrift_sasl,
        str(ca_file) if ca_file else None,
    )
    return module.ThriftLink(options)


def _named(settings: MaintenanceSettings, others: dict[str, str]) -> dict[str, str]:
    """Our names of the catalogs, and theirs: those that are given, or all of PyIceberg's under the same name. Pure."""
    return others or {name: name for name in properties_of(settings)}


def clock_of(url: str | None) -> Callable[[], int]:
    """The clock of the database in milliseconds. Ages of snapshots and files are measured with it."""

    def now_ms() -> int:
        assert url is not None, "the clock is that of our database"
        with connect_sync(url) as conn:
            row = conn.execute(NOW_MS).fetchone()
        assert row is not None
        return int(row[0])

    return now_ms


OPENERS: Final[dict[str, Callable[[MaintenanceSettings], Engine]]] = {"trino": _open_trino, "spark": _open_spark}
