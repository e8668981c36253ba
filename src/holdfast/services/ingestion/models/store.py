"""The rows of data models and their versions. Versions are immutable; a model refers to its newest one.

Every data entry type of every version has a row with a small number, which the entries and factors refer to. The number stays
when a new version changes the type, and it is kept when a version leaves the type out: its entries exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row
from psycopg.types.json import Jsonb

from holdfast.errors import NotFound
from holdfast.services.ingestion.models.definitions import DataEntryType, DataModel, Module
from holdfast.services.ingestion.models.rules import model_of

Conn = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model. It never changes."""

    name: str
    version: int
    change_description: str | None
    definition: dict[str, Any]
    created_by: str
    created_at: datetime

    @property
    def model(self) -> DataModel:
        return model_of(self.definition)


@dataclass(frozen=True, slots=True)
class KnownType:
    """A data entry type of the current version, with its number."""

    det_id: int
    model: str
    version: int
    module: Module
    det: DataEntryType


COLUMNS = "m.name, v.version, v.change_description, v.definition, v.created_by, v.created_at"
HOLD = """
    INSERT INTO holdfast.data_models (name) VALUES (%(name)s)
    ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id, current_version
"""
ADD_VERSION = """
    WITH added AS (
        INSERT INTO holdfast.data_model_versions (model_id, version, change_description, definition, created_by)
        VALUES (%(id)s, %(version)s, %(change)s, %(definition)s, %(by)s)
    )
    UPDATE holdfast.data_models SET current_version = %(version)s, updated_at = clock_timestamp() WHERE id = %(id)s
"""
ADD_TYPES = """
    INSERT INTO holdfast.data_entry_types (model_id, module, name)
    SELECT %(id)s, module, name FROM unnest(%(modules)s::text[], %(names)s::text[]) AS given(module, name)
    ON CONFLICT DO NOTHING
"""


async def apply(conn: Conn, model: DataModel, *, by: str, change: str | None = None) -> tuple[ModelVersion, bool]:
    """Create the model, or add a version if its definition changed; the current version, and whether it is new. Call it in a
    transaction: it locks the model's row."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(HOLD, {"name": model.name})
        ((model_id, number),) = await cursor.fetchall()
        if number and (current := await get(conn, model.name)).model == model:
            return current, False
        parameters = {"id": model_id, "version": number + 1, "change": change, "by": by}
        await cursor.execute(ADD_VERSION, {**parameters, "definition": Jsonb(model.stored())})
        pairs = [(module.name, det.name) for module, det in model.types()]
        given = {"modules": [module for module, _ in pairs], "names": [name for _, name in pairs]}
        await cursor.execute(ADD_TYPES, {"id": model_id, **given})
    return await get(conn, model.name), True


READ = f"""
    SELECT {COLUMNS} FROM holdfast.data_models m JOIN holdfast.data_model_versions v ON v.model_id = m.id
    WHERE m.name = %(name)s AND v.version = coalesce(%(version)s::integer, m.current_version)
"""


async def get(conn: Conn, name: str, version: int | None = None) -> ModelVersion:
    """A version of a model; without a number the current one."""
    async with conn.cursor(row_factory=class_row(ModelVersion)) as cursor:
        await cursor.execute(READ, {"name": name, "version": version})
        found = await cursor.fetchone()
    if found is None:
        what = f"data model {name!r}" if version is None else f"version {version} of the data model {name!r}"
        raise NotFound(f"there is no {what}; create it with `holdfast ingest model apply FILE`")
    return found


LIST = f"""
    SELECT {COLUMNS} FROM holdfast.data_models m
    JOIN holdfast.data_model_versions v ON v.model_id = m.id AND v.version = m.current_version ORDER BY m.name LIMIT 1000
"""
VERSIONS = f"""
    SELECT {COLUMNS} FROM holdfast.data_models m JOIN holdfast.data_model_versions v ON v.model_id = m.id
    WHERE m.name = %(name)s ORDER BY v.version DESC LIMIT 1000
"""


async def listed(conn: Conn) -> list[ModelVersion]:
    """The current version of every model."""
    async with conn.cursor(row_factory=class_row(ModelVersion)) as cursor:
        await cursor.execute(LIST)
        return await cursor.fetchall()


async def versions(conn: Conn, name: str) -> list[ModelVersion]:
    """All versions of a model, newest first."""
    await get(conn, name)
    async with conn.cursor(row_factory=class_row(ModelVersion)) as cursor:
        await cursor.execute(VERSIONS, {"name": name})
        return await cursor.fetchall()


NUMBERS = """
    SELECT t.module, t.name, t.id FROM holdfast.data_entry_types t JOIN holdfast.data_models m ON m.id = t.model_id
    WHERE m.name = %(model)s
"""


async def types_of(conn: Conn, model: str, version: int | None = None) -> list[KnownType]:
    """Every data entry type of a version of a model, with its number."""
    found = await get(conn, model, version)
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(NUMBERS, {"model": model})
        numbers = {(module, name): number for module, name, number in await cursor.fetchall()}
    return [KnownType(numbers[module.name, det.name], model, found.version, module, det) for module, det in found.model.types()]


def is_called(said: str, name: str, number: int | None) -> bool:
    """Whether a path means this module or type: by its name, or by the number that the model gives it. Pure."""
    return said == name or (number is not None and said == str(number))


def in_module(types: list[KnownType], module: str) -> list[KnownType]:
    """The types of a module; `NotFound` with the modules that exist. Pure."""
    found = [one for one in types if is_called(module, one.module.name, one.module.id)]
    if not found:
        there = ", ".join(dict.fromkeys(one.module.name for one in types))
        raise NotFound(f"there is no module {module!r} in the data model; use one of: {there}")
    return found


def one_type(types: list[KnownType], module: str, det: str) -> KnownType:
    """One type of a module; `NotFound` with the types that exist. Pure."""
    there = in_module(types, module)
    for one in there:
        if is_called(det, one.det.name, one.det.id):
            return one
    names = ", ".join(one.det.name for one in there)
    raise NotFound(f"the module {module!r} has no data entry type {det!r}; use one of: {names}")
