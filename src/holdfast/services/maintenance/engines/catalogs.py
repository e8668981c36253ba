"""PyIceberg catalogs from configuration. Called by: the embedded engine, the table cache, the demo.

A catalog is a name and PyIceberg's own properties (`type`, `uri`, `warehouse`, credentials). The type `embedded` is the SQL
catalog in our Postgres, in a schema of its own; it is the default, and the only one whose commits see our jobs. Other types
are passed to PyIceberg: `rest`, `glue`, `hive`, `sql`, `dynamodb`, `bigquery`. A name without properties is looked up in
PyIceberg's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import UsageError
from holdfast.extras import loaded

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

EMBEDDED: Final = "embedded"
TYPES: Final = (EMBEDDED, "rest", "glue", "hive", "sql", "dynamodb", "bigquery")
DEFAULT: Final = "default"
PASSED: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "application_name", "host", "port")
EXTRAS: Final = {"glue": "glue", "dynamodb": "dynamodb", "hive": "hive", "bigquery": "bigquery"}


class Catalogs:
    """The configured catalogs, opened when they are first used. It may be used by several threads.

    `given` has the properties of each catalog by name. `database_url` is our Postgres, for catalogs of the type `embedded`.
    """

    def __init__(self, given: Mapping[str, Mapping[str, str]], *, database_url: str | None = None) -> None:
        self._given = {name: checked(name, properties, database_url) for name, properties in given.items()}
        self._database_url = database_url
        self._open: dict[tuple[str, bool], Catalog] = {}
        self._lock = Lock()

    @property
    def names(self) -> list[str]:
        """The names of the catalogs."""
        return list(self._given)

    def open(self, name: str) -> Catalog:
        """The catalog for maintenance: writes need a fence."""
        return self._opened(name, fenced=True)

    def open_for_writers(self, name: str) -> Catalog:
        """The catalog for programs that create and fill tables, such as the demo and tests."""
        return self._opened(name, fenced=False)

    def close(self) -> None:
        """Close the connections of all catalogs."""
        with self._lock:
            for catalog in self._open.values():
                engine = getattr(catalog, "engine", None)
                if engine is not None:
                    engine.dispose()
                else:
                    catalog.close()
            self._open.clear()

    def _opened(self, name: str, *, fenced: bool) -> Catalog:
        if name not in self._given:
            raise UsageError(f"there is no catalog {name!r}; the configured catalogs are {', '.join(self._given) or 'none'}")
        with self._lock:
            if (name, fenced) not in self._open:
                self._open[name, fenced] = self._load(name, self._given[name], fenced)
            return self._open[name, fenced]

    def _load(self, name: str, properties: Mapping[str, str], fenced: bool) -> Catalog:
        catalog: Catalog
        if properties.get("type") == EMBEDDED:
            assert self._database_url is not None
            module = loaded("holdfast.services.maintenance.engines.pyiceberg.fence_sql", extra="maintenance")
            make = module.FencedSqlCatalog if fenced else module.EmbeddedCatalog
            rest = {key: value for key, value in properties.items() if key != "type"}
            catalog = make(name, **{**rest, "uri": alchemy_url(self._database_url)})
            return catalog
        module, errors = loaded("pyiceberg.catalog", extra="maintenance"), loaded("pyiceberg.exceptions", extra="maintenance")
        try:
            catalog = module.load_catalog(name, **properties)
        except (errors.NotInstalledError, ModuleNotFoundError) as missing:
            extra = EXTRAS.get(properties.get("type", ""), properties.get("type", ""))
            raise UsageError(f"catalog {name!r}: {missing}; install it with: pip install 'pyiceberg[{extra}]'") from None
        return catalog


def checked(name: str, properties: Mapping[str, Any], database_url: str | None) -> dict[str, str]:
    """The properties of a catalog, as texts; `UsageError` if they are incomplete. Pure."""
    if not name or not name.isprintable() or "." in name or "/" in name:
        raise UsageError(f"{name!r} is not the name of a catalog; use a name without dots and slashes")
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in properties.items()}
    kind = texts.get("type")
    if kind is not None and kind not in TYPES:
        raise UsageError(f"catalog {name!r}: the type {kind!r} is unknown; use one of {', '.join(TYPES)}")
    if kind == EMBEDDED and not texts.get("warehouse"):
        raise UsageError(f"catalog {name!r}: warehouse is missing; set it to the folder or bucket of the tables")
    if kind == EMBEDDED and not database_url:
        raise UsageError(f"catalog {name!r}: the type embedded needs our Postgres; set HOLDFAST_DATABASE_URL")
    if kind in ("rest", "hive", "sql") and not texts.get("uri"):
        raise UsageError(f"catalog {name!r}: uri is missing; a catalog of the type {kind} needs it")
    return texts


def alchemy_url(database_url: str) -> str:
    """Our database address as SQLAlchemy takes it. Pure."""
    parts = conninfo_to_dict(database_url)
    user, password = parts.get("user"), parts.get("password")
    login = f"{quote(str(user), safe='')}{':' + quote(str(password), safe='') if password else ''}@" if user else ""
    query = urlencode({key: str(parts[key]) for key in PASSED if parts.get(key) is not None})
    return f"postgresql+psycopg://{login}/{quote(str(parts.get('dbname', '')), safe='')}{'?' + query if query else ''}"
