"""The schema cache: what the engines' catalogs contain."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from holdfast.toolkit.client.api import Api


class Schema:
    """`hf.schema`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def catalogs(self) -> list[dict[str, Any]]:
        """All catalogs."""
        return self._list("/api/schema/catalogs")

    def schemas(self, catalog: str) -> list[dict[str, Any]]:
        """The schemas of a catalog."""
        return self._list(f"/api/schema/catalogs/{_named(catalog)}/schemas")

    def tables(self, catalog: str, schema: str) -> list[dict[str, Any]]:
        """The tables of a schema."""
        return self._list(f"/api/schema/catalogs/{_named(catalog)}/schemas/{_named(schema)}/tables")

    def columns(self, catalog: str, schema: str, table: str) -> list[dict[str, Any]]:
        """The columns of a table, in order."""
        place = f"/api/schema/catalogs/{_named(catalog)}/schemas/{_named(schema)}/tables"
        return self._list(f"{place}/{_named(table)}/columns")

    def search(self, prefix: str, *, columns: bool = False, most: int = 100) -> list[dict[str, Any]]:
        """Tables, or columns, whose name begins with `prefix`."""
        return self._list(f"/api/schema/search/{'columns' if columns else 'tables'}", limit=most, q=prefix)

    def _list(self, path: str, **params: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._api.get(path, **params)
        return found


def _named(name: str) -> str:
    """A name as one segment of a path. Pure."""
    return quote(name, safe="")
