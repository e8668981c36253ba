"""Check the payload of an `exports.run` before it is enqueued, so that the user can fix it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from holdfast.engines.options import EngineOptions
from holdfast.engines.port import MissingRole
from holdfast.engines.registry import ENGINES, capabilities_of
from holdfast.engines.select import reasons_against
from holdfast.errors import PayloadInvalid
from holdfast.jobs.model import Json
from holdfast.services.exports.export.payload import RunPayload
from holdfast.services.exports.limits import LONGEST_SQL
from holdfast.stores.paths import PathRefused, bucket_refused, location_of
from holdfast.threads import in_thread


class RefusedExport(PayloadInvalid):
    """The job could only fail; `mistakes` has all reasons with their pointers in the payload."""

    def __init__(self, mistakes: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{place[1:]}: {why}" for place, why in mistakes))
        self.mistakes = mistakes

    def members(self) -> dict[str, Any]:
        return {"errors": [{"pointer": f"/payload{place}", "message": why} for place, why in self.mistakes]}


async def refuse_hopeless(options: EngineOptions, payload: Mapping[str, Json], addresses: Sequence[str]) -> None:
    """Raise `RefusedExport` with all mistakes in the payload of an `exports.run`.

    `addresses`: where it may write in object stores.
    """
    mistakes: list[tuple[str, str]] = await in_thread(lambda: [*_mistakes(options, payload, addresses)])
    if mistakes:
        raise RefusedExport(mistakes)


def _mistakes(options: EngineOptions, payload: Mapping[str, Json], addresses: Sequence[str]) -> Iterator[tuple[str, str]]:
    engine, sql, to = payload.get("engine", "duckdb"), payload.get("sql"), payload.get("to")
    can = capabilities_of(engine, options) if isinstance(engine, str) and engine in ENGINES else None
    if can is None:
        yield "/engine", f"there is no engine {engine!r:.80}; use one of: {', '.join(sorted(ENGINES))}"
    elif can.needs_role and not payload.get("role"):
        yield "/role", str(MissingRole())
    if not isinstance(sql, str) or not sql.strip():
        yield "/sql", "it is missing; give one SELECT"
    elif len(sql) > LONGEST_SQL:
        yield "/sql", f"it has {len(sql):,} characters; at most {LONGEST_SQL:,}, so use a view"
    elif can is not None:
        catalog = payload.get("catalog")
        named = catalog if isinstance(catalog, str) else None
        for why in reasons_against(sql, can.dialect, files=can.reads_files, catalog=named):
            yield "/sql", why
    yield from _of_options(payload)
    if not isinstance(to, str):
        yield "/to", "it is missing; give an absolute folder, s3://bucket/prefix or gs://bucket/prefix"
        return
    try:
        outside = bucket_refused(location_of(to), addresses)
    except PathRefused as refused:
        outside = str(refused)
    if outside is not None:
        yield "/to", outside


def _of_options(payload: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Mistakes in the other arguments; `sql`, `to` and `engine` have their own messages."""
    try:
        RunPayload.model_validate(payload)
    except ValidationError as invalid:
        for problem in invalid.errors(include_url=False, include_input=False):
            place = str(problem["loc"][0])
            if problem["type"] == "extra_forbidden":
                there = ", ".join(field.alias or name for name, field in RunPayload.model_fields.items())
                yield f"/{place}", f"unknown argument; the arguments are: {there}"
            elif place not in ("sql", "to", "engine"):
                yield f"/{place}", str(problem["msg"])
