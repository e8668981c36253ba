"""Modules, data entry types and columns of a data model. Pure data; `rules.py` checks what types alone cannot."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=50)]
Header = Annotated[str, Field(min_length=1, max_length=200)]
ColumnType = Literal["text", "integer", "decimal", "boolean", "date"]
KEY_TYPES: Final = ("text", "integer", "date")
UNITS: Final = "units"  # the reference list of organisational units


class Defined(BaseModel):
    """A part of a data model. Unknown fields are refused, and it is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(Defined):
    """A column of a file: its type, and what its values must be. `unit` is the unit of measure, for people."""

    name: Name
    type: ColumnType = "text"
    headers: tuple[Header, ...] = ()  # other names of the column in files; the name itself is always one
    unit: Annotated[str, Field(max_length=50)] | None = None
    required: bool = False
    min: Decimal | None = None
    max: Decimal | None = None
    allowed: tuple[Annotated[str, Field(max_length=200)], ...] = ()
    lookup: Name | None = None  # a reference list that must have the value as a code
    format: Annotated[str, Field(max_length=20)] | None = None  # of dates: YYYY-MM-DD (default), DD.MM.YYYY, MM/DD/YYYY

    @field_serializer("min", "max")
    def _exactly(self, value: Decimal | None) -> str | None:
        return None if value is None else str(value)


class Api(Defined):
    """A paged HTTP API that delivers rows as JSON objects."""

    url: Annotated[str, Field(max_length=2000)]
    items: Annotated[str, Field(max_length=100)] = "data"  # the member with the list of rows
    next_cursor: Annotated[str, Field(max_length=100)] = "next_cursor"  # the member with the cursor of the next page
    cursor_parameter: Annotated[str, Field(max_length=100)] = "cursor"
    year_parameter: Annotated[str, Field(max_length=100)] | None = "year"


class DataEntryType(Defined):
    """A type of data entries: its columns, its natural key, and which columns make an emission."""

    name: Name
    id: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None  # accepted in place of the name
    columns: Annotated[tuple[Column, ...], Field(min_length=1, max_length=100)]
    key: tuple[Name, ...] = ()  # columns that identify an entry within its year; none: entries can only be appended
    amount: Name | None = None  # the column that factors are multiplied with
    unit: Name | None = None  # the column with the organisational unit
    classification: tuple[Name, ...] = ()  # columns that select the factor
    api: Api | None = None

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def looks_up_units(self) -> bool:
        """Whether a file can be validated only after the units of its year are known."""
        return any(column.lookup == UNITS for column in self.columns)


class Module(Defined):
    """A module: data entry types that belong together."""

    name: Name
    id: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    data_entry_types: Annotated[tuple[DataEntryType, ...], Field(min_length=1, max_length=100)]


class DataModel(Defined):
    """The modules of one domain."""

    name: Name
    description: Annotated[str, Field(max_length=4000)] | None = None
    modules: Annotated[tuple[Module, ...], Field(min_length=1, max_length=100)]

    def types(self) -> Iterator[tuple[Module, DataEntryType]]:
        """Every data entry type with its module."""
        for module in self.modules:
            for det in module.data_entry_types:
                yield module, det

    def stored(self) -> dict[str, Any]:
        """As JSON, without what has its default."""
        return self.model_dump(mode="json", exclude_defaults=True)
