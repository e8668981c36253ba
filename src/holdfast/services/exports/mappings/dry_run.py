"""Would the engine return these columns? It is asked before a mapping is stored, without running anything.

All of it happens beside the event loop and within a time: whoever may write SQL must not make others wait.

A mistake in a mapping that nobody notices until its exports run costs an hour; here it costs a second.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from holdfast.services.exports.engines.port import Column, Engine, EngineError, Query, QueryRefused
from holdfast.services.exports.mappings.definitions import Definition, Graph, NodeDefinition, Property
from holdfast.services.exports.mappings.rules import InvalidMapping, Mistake, mistakes_of
from holdfast.services.exports.mappings.select import reasons_against
from holdfast.worker.threads import in_thread

if TYPE_CHECKING:  # heavy, and an extra
    import pyarrow as pa

AT_ONCE: Final = 8
LONGEST_LOOK: Final = 15.0  # seconds for what one SELECT would return
_parsing = threading.Lock()
DRY_RUN_TAG: Final = "graph-olap-export-dry-run"


Part = tuple[str, Definition]


async def check(graph: Graph, engine: Engine, *, role: str | None = None, files: bool = False) -> None:
    """Raise `InvalidMapping` with everything that is wrong, by the rules, by the parser and by the engine, in its order.

    Each step looks at what passed the one before, so nothing is said twice and nothing waits for another's mistake.
    """
    parts = graph.parts()
    mistakes = mistakes_of(graph)
    if not any(mistake.pointer == "/nodes" for mistake in mistakes):  # else there is too much to parse, or nothing
        mistakes += await in_thread(partial(_parsed, _without(parts, mistakes), engine.name, files))
        try:
            mistakes += await _asked(_without(parts, mistakes), graph.by_label(), engine, role)
        except EngineError:
            if not mistakes:
                raise
    if mistakes:
        order = {at: number for number, (at, _) in enumerate(parts)}
        raise InvalidMapping(sorted(mistakes, key=lambda mistake: order.get(_part_of(mistake), -1)))


def _without(parts: list[Part], mistakes: list[Mistake]) -> list[Part]:
    """The definitions that nothing is known against yet. Pure."""
    wrong = {_part_of(mistake) for mistake in mistakes}
    return [part for part in parts if part[0] not in wrong]


def _part_of(mistake: Mistake) -> str:
    """Where the definition stands that a mistake is in: /nodes/1 of /nodes/1/sql#balance. Pure."""
    return "/".join(mistake.pointer.split("/")[:3])


def _parsed(parts: list[Part], dialect: str, files: bool) -> list[Mistake]:
    """What the parser says. One mapping at a time: it is Python, and leaves nobody else much of the process."""
    with _parsing:
        found = ((at, reasons_against(one.sql, dialect, files=files, catalog=one.catalog)) for at, one in parts)
        return [Mistake(f"{at}/sql", why) for at, reasons in found for why in reasons]


async def _asked(parts: list[Part], nodes: Mapping[str, NodeDefinition], engine: Engine, role: str | None) -> list[Mistake]:
    """What the engine says about each definition, a few at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(at: str, definition: Definition) -> list[Mistake]:
        query = Query(
            definition.sql,
            tag=f"{DRY_RUN_TAG}-{uuid4().hex}",
            catalog=definition.catalog,
            schema=definition.schema_name,
            role=role,
        )
        async with turns:
            try:
                async with asyncio.timeout(LONGEST_LOOK) as look:
                    returned = await engine.describe(query)
            except QueryRefused as refused:
                return [Mistake(f"{at}/sql", f"{engine.name} refuses it: {refused}")]
            except TimeoutError:
                if not look.expired():
                    raise
                return [Mistake(f"{at}/sql", f"{engine.name} could not say its columns in {LONGEST_LOOK:.0f} s; simplify it")]
        return [*mismatches(f"{at}/sql", definition.columns(nodes), returned)]

    found = await asyncio.gather(*(ask(at, definition) for at, definition in parts))
    return [mistake for one in found for mistake in one]


def mismatches(at: str, wanted: Sequence[Property], returned: Sequence[Column]) -> Iterator[Mistake]:
    """Where the columns that the engine would return are not the ones that the mapping names. Pure."""
    places = {column.name.casefold(): number for number, column in enumerate(returned)}
    names = {one.name.casefold() for one in wanted}
    for number, one in enumerate(wanted):
        place = places.get(one.name.casefold())
        if place is None:
            there = ", ".join(column.name for column in returned) or "none"
            yield Mistake(f"{at}#{one.name}", f"the SELECT returns no column {one.name!r}; it returns: {there}")
            continue
        if place != number:
            yield Mistake(f"{at}#{one.name}", f"{one.name!r} is column {place + 1} of the SELECT; make it column {number + 1}")
        why = _unfit(one.type, returned[place])
        if why is not None:
            yield Mistake(f"{at}#{one.name}", why)
    for column in returned:
        if column.name.casefold() not in names:
            yield Mistake(f"{at}#{column.name}", f"the SELECT returns {column.name!r}; name it as a property, or leave it out")


def _unfit(wanted: str, column: Column) -> str | None:
    if wanted not in FITS:  # the key of a node that an edge leads to: it is said where it stands
        return None
    types = import_module("pyarrow").types
    if FITS[wanted](types, column.arrow):
        return None
    if types.is_decimal(column.arrow):
        return f"{column.name!r} is {column.type}; write CAST({column.name} AS DOUBLE) and type DOUBLE"
    fitting = [name for name, fits in FITS.items() if fits(types, column.arrow)]
    instead = f"type {' or '.join(fitting)}" if fitting else "a CAST to a type that graphs have"
    return f"{column.name!r} is {column.type} and no {wanted}; use {instead}, or CAST it in the SELECT"


def _integer(bits: int) -> Callable[[Any, pa.DataType], bool]:
    """Whole numbers that fit into so many bits with a sign."""

    def fits(types: Any, arrow: pa.DataType) -> bool:
        if types.is_signed_integer(arrow):
            return bool(arrow.bit_width <= bits)
        return bool(types.is_unsigned_integer(arrow) and arrow.bit_width < bits)

    return fits


def _is_text(types: Any, arrow: pa.DataType) -> bool:
    return bool(types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow))


def _is_bytes(types: Any, arrow: pa.DataType) -> bool:
    return bool(types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_fixed_size_binary(arrow))


def _is_uuid(types: Any, arrow: pa.DataType) -> bool:
    return getattr(arrow, "extension_name", "") == "arrow.uuid" or _is_text(types, arrow)


def _is_list(types: Any, arrow: pa.DataType) -> bool:
    return bool(types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow))


FITS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "STRING": lambda types, arrow: _is_text(types, arrow) or bool(types.is_dictionary(arrow)),
    "INT64": _integer(64),
    "INT32": _integer(32),
    "INT16": _integer(16),
    "INT8": _integer(8),
    "DOUBLE": lambda types, arrow: types.is_float64(arrow) or types.is_float32(arrow),
    "FLOAT": lambda types, arrow: types.is_float32(arrow),
    "DATE": lambda types, arrow: types.is_date(arrow),
    "TIMESTAMP": lambda types, arrow: types.is_timestamp(arrow),
    "BOOL": lambda types, arrow: types.is_boolean(arrow),
    "BLOB": _is_bytes,
    "UUID": _is_uuid,
    "LIST": _is_list,
    "MAP": lambda types, arrow: types.is_map(arrow),
    "STRUCT": lambda types, arrow: types.is_struct(arrow),
}
