"""Check a mapping before it is stored: by the rules, by the parser, and by the engine, which describes each query.

A mistake that is found when the exports run costs an hour; here it costs a second. The checks run beside the event loop and
within a time limit: SQL of one user must not delay the requests of others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final
from uuid import uuid4

from holdfast.engines.port import Column, Dialect, Engine, EngineError, Query, QueryRefused
from holdfast.engines.select import reasons_against
from holdfast.extras import loaded
from holdfast.services.exports.graph_types import FITS
from holdfast.services.exports.limits import DESCRIBE_SECONDS
from holdfast.services.exports.mappings.definitions import Definition, Graph, NodeDefinition, Property
from holdfast.services.exports.mappings.rules import InvalidMapping, Mistake, mistakes_of
from holdfast.threads import in_thread

AT_ONCE: Final = 8
_parsing = threading.Lock()
DRY_RUN_TAG: Final = "graph-olap-export-dry-run"


Part = tuple[str, Definition]


async def check(graph: Graph, engine: Engine, *, role: str | None = None, files: bool = False) -> None:
    """Raise `InvalidMapping` with all mistakes, in the order of the definitions.

    Each step checks the definitions that passed the step before, so no mistake is reported twice.
    """
    parts = graph.parts()
    mistakes = mistakes_of(graph)
    if not any(mistake.pointer == "/nodes" for mistake in mistakes):  # otherwise there is too much SQL to parse, or none
        mistakes += await in_thread(partial(_parsed, _without(parts, mistakes), engine.capabilities.dialect, files))
        try:
            mistakes += await _asked(_without(parts, mistakes), graph.by_label(), engine, role)
        except EngineError:
            if not mistakes:
                raise
    if mistakes:
        order = {at: number for number, (at, _) in enumerate(parts)}
        raise InvalidMapping(sorted(mistakes, key=lambda mistake: order.get(_part_of(mistake), -1)))


def _without(parts: list[Part], mistakes: list[Mistake]) -> list[Part]:
    """The definitions without a mistake so far. Pure."""
    wrong = {_part_of(mistake) for mistake in mistakes}
    return [part for part in parts if part[0] not in wrong]


def _part_of(mistake: Mistake) -> str:
    """The pointer of the definition that has the mistake: /nodes/1 for /nodes/1/sql#balance. Pure."""
    return "/".join(mistake.pointer.split("/")[:3])


def _parsed(parts: list[Part], dialect: Dialect, files: bool) -> list[Mistake]:
    """Mistakes that the parser finds. One mapping at a time: parsing in Python holds the GIL."""
    with _parsing:
        found = ((at, reasons_against(one.sql, dialect, files=files, catalog=one.catalog)) for at, one in parts)
        return [Mistake(f"{at}/sql", why) for at, reasons in found for why in reasons]


async def _asked(parts: list[Part], nodes: Mapping[str, NodeDefinition], engine: Engine, role: str | None) -> list[Mistake]:
    """Mistakes that the engine finds, a few definitions at a time."""
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
                async with asyncio.timeout(DESCRIBE_SECONDS) as limit:
                    returned = await engine.describe(query)
            except QueryRefused as refused:
                return [Mistake(f"{at}/sql", f"{engine.name} rejects it: {refused}")]
            except TimeoutError:
                if not limit.expired():
                    raise
                late = f"{engine.name} could not describe its columns in {DESCRIBE_SECONDS:.0f} s; simplify it"
                return [Mistake(f"{at}/sql", late)]
        return [*mismatches(f"{at}/sql", definition.columns(nodes), returned)]

    found = await asyncio.gather(*(ask(at, definition) for at, definition in parts))
    return [mistake for one in found for mistake in one]


def mismatches(at: str, wanted: Sequence[Property], returned: Sequence[Column]) -> Iterator[Mistake]:
    """Differences between the columns of the query and those of the mapping. Pure."""
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
            yield Mistake(
                f"{at}#{column.name}",
                f"the SELECT returns {column.name!r}, which is not a property; add or remove it",
            )


def _unfit(wanted: str, column: Column) -> str | None:
    if wanted not in FITS:  # the key of a node that an edge refers to: the mistake is reported there
        return None
    types = loaded("pyarrow").types
    if FITS[wanted](types, column.arrow):
        return None
    if types.is_decimal(column.arrow):
        return f"{column.name!r} is {column.type}; write CAST({column.name} AS DOUBLE) and type DOUBLE"
    fitting = [name for name, fits in FITS.items() if fits(types, column.arrow)]
    instead = f"type {' or '.join(fitting)}" if fitting else "a CAST to a type that graphs have"
    return f"{column.name!r} is {column.type}, not {wanted}; use {instead}, or CAST it in the SELECT"
