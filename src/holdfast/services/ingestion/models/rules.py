"""Validation of a data model without a database: names, keys, roles of columns, ranges. Pure; reports every mistake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from holdfast.errors import UsageError
from holdfast.services.ingestion.models.definitions import KEY_TYPES, Column, DataEntryType, DataModel

DATE_FORMATS: Final = ("YYYY-MM-DD", "DD.MM.YYYY", "DD/MM/YYYY", "MM/DD/YYYY", "YYYY/MM/DD")


class Mistake(NamedTuple):
    """What is wrong, and where, as a JSON pointer."""

    pointer: str
    message: str


class InvalidModel(UsageError):
    """The data model has mistakes; `errors` lists them."""

    slug = "validation-failed"

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = list(mistakes)
        first = self.mistakes[0]
        more = f" (and {len(self.mistakes) - 1} more)" if len(self.mistakes) > 1 else ""
        super().__init__(f"the data model is not valid: {first.pointer}: {first.message}{more}")

    def members(self) -> dict[str, Any]:
        return {"errors": [mistake._asdict() for mistake in self.mistakes]}


def model_of(given: Any) -> DataModel:
    """The model that this JSON describes; `InvalidModel` with every mistake."""
    try:
        model = DataModel.model_validate(given)
    except ValidationError as error:
        raise InvalidModel(
            Mistake("/" + "/".join(str(part) for part in one["loc"]), one["msg"]) for one in error.errors()
        ) from None
    mistakes = list(mistakes_of(model))
    if mistakes:
        raise InvalidModel(mistakes)
    return model


def mistakes_of(model: DataModel) -> Iterator[Mistake]:
    """What is wrong with a model whose fields have the right types."""
    yield from _twice((f"/modules/{n}/name", module.name) for n, module in enumerate(model.modules))
    yield from _twice((f"/modules/{n}/id", module.id) for n, module in enumerate(model.modules))
    for number, module in enumerate(model.modules):
        at = f"/modules/{number}/data_entry_types"
        yield from _twice((f"{at}/{n}/name", det.name) for n, det in enumerate(module.data_entry_types))
        yield from _twice((f"{at}/{n}/id", det.id) for n, det in enumerate(module.data_entry_types))
        for n, det in enumerate(module.data_entry_types):
            yield from _of_type(f"{at}/{n}", det)


def _of_type(at: str, det: DataEntryType) -> Iterator[Mistake]:
    headers = [
        (f"{at}/columns/{n}", header.casefold())
        for n, column in enumerate(det.columns)
        for header in sorted({column.name, *column.headers})
    ]
    yield from _twice(headers)
    columns = {column.name: column for column in det.columns}
    roles = [("amount", det.amount), ("unit", det.unit), *(("key", name) for name in det.key)]
    for role, name in [*roles, *(("classification", name) for name in det.classification)]:
        if name is not None and name not in columns:
            yield Mistake(f"{at}/{role}", f"there is no column {name!r}; use one of: {', '.join(columns)}")
    for name in det.key:
        if name in columns and columns[name].type not in KEY_TYPES:
            yield Mistake(f"{at}/key", f"column {name!r} is {columns[name].type}; a key has the types {', '.join(KEY_TYPES)}")
        if name in columns and not columns[name].required:
            yield Mistake(f"{at}/key", f"column {name!r} is part of the key and must have `required: true`")
    if det.amount in columns and columns[det.amount].type not in ("integer", "decimal"):
        yield Mistake(f"{at}/amount", f"column {det.amount!r} must be integer or decimal")
    if det.amount is None and det.classification:
        yield Mistake(f"{at}/classification", "has no effect without `amount`; declare the column with the amount")
    for number, column in enumerate(det.columns):
        yield from _of_column(f"{at}/columns/{number}", column)


def _of_column(at: str, column: Column) -> Iterator[Mistake]:
    is_number = column.type in ("integer", "decimal")
    if (column.min is not None or column.max is not None) and not is_number:
        yield Mistake(at, f"column {column.name!r} is {column.type}; only numbers have min and max")
    if column.min is not None and column.max is not None and column.min > column.max:
        yield Mistake(at, f"min {column.min} is larger than max {column.max}")
    if column.allowed and column.type != "text":
        yield Mistake(at, f"column {column.name!r} is {column.type}; only text has allowed values")
    if column.lookup is not None and column.type != "text":
        yield Mistake(at, f"column {column.name!r} is {column.type}; only text is looked up")
    if column.format is not None and (column.type != "date" or column.format not in DATE_FORMATS):
        yield Mistake(at, f"format {column.format!r} is not supported; dates have one of: {', '.join(DATE_FORMATS)}")


def _twice(named: Iterable[tuple[str, Any]]) -> Iterator[Mistake]:
    seen: dict[Any, str] = {}
    for at, name in named:
        if name is None:
            continue
        first = seen.setdefault(name, at)
        if first != at:
            yield Mistake(at, f"{name!r} is a duplicate of {first}; rename or remove one of them")
