"""Which column of a file is which column of the data model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.services.ingestion.models.definitions import Column
from holdfast.services.ingestion.sources.dialect import UnreadableFile


@dataclass(frozen=True, slots=True)
class Matched:
    """The columns of a file by the names of the model, and those that the model does not know."""

    places: dict[str, str]  # name in the model: column of the staging table
    ignored: tuple[str, ...]


def match(header: Sequence[str], columns: Sequence[Column]) -> Matched:
    """Match by name and by the other headers of a column, whatever their case. `UnreadableFile` if a required one is missing.

    Columns whose name begins with `_` are ours: the file of bad rows has them beside the columns of the original.
    """
    wanted = {header.casefold(): column.name for column in columns for header in (column.name, *column.headers)}
    places: dict[str, str] = {}
    ignored = []
    for number, name in enumerate(header, start=1):
        found = wanted.get(name.casefold())
        if found is None:
            ignored += [] if name.startswith("_") else [name]
        elif found in places:
            raise UnreadableFile(f"two columns of the file are {found!r}; remove one of them")
        else:
            places[found] = f"c{number}"
    missing = [column.name for column in columns if column.required and column.name not in places]
    if missing:
        raise UnreadableFile(
            f"the file has no column {', '.join(map(repr, missing))}; it has: {', '.join(header[:50])}. Add the column, or "
            "give the delimiter if these names are not separated"
        )
    return Matched(places, tuple(ignored))
