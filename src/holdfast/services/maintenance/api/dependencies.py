"""Parameters that the routes of maintenance share: the engines of this process, and the name of a table."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Path, Query, Request

from holdfast.api.acts import Text
from holdfast.api.plane import plane_of
from holdfast.services.maintenance.engines.interface import TableRef
from holdfast.services.maintenance.setup import Maintenance


def maintenance_of(request: Request) -> Maintenance:
    """The engines and options of maintenance in this process."""
    return cast("Maintenance", plane_of(request).services["maintenance"])


Here = Annotated[Maintenance, Depends(maintenance_of)]

Database = Annotated[Text, Path(min_length=1, max_length=1000, description="The namespace, with dots if it has levels.")]
TableName = Annotated[Text, Path(min_length=1, max_length=255)]
CatalogName = Annotated[Text | None, Query(min_length=1, max_length=255, description="Default: the first configured catalog.")]


def table_of(here: Here, db: Database, table: TableName, catalog: CatalogName = None) -> TableRef:
    """The table that a path names."""
    return TableRef(catalog or here.default_catalog, db, table)


Table = Annotated[TableRef, Depends(table_of)]
