"""Is it worth a job? What an `export.run` says is looked at before it is enqueued: whoever asked is still there to mend it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from holdfast.errors import PayloadInvalid
from holdfast.jobs.model import Json
from holdfast.services.exports.engines.opened import Engines
from holdfast.services.exports.engines.opening import ENGINES
from holdfast.services.exports.engines.port import MissingRole
from holdfast.services.exports.export.payload import RunPayload
from holdfast.services.exports.mappings.rules import LONGEST_SQL
from holdfast.services.exports.mappings.select import reasons_against
from holdfast.services.exports.stores.paths import PathRefused, bucket_refused, location_of
from holdfast.worker.threads import in_thread


class RefusedExport(PayloadInvalid):
    """A job that could only fail; `mistakes` has every reason, by its place in the payload."""

    def __init__(self, mistakes: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{place[1:]}: {why}" for place, why in mistakes))
        self.mistakes = mistakes

    def members(self) -> dict[str, Any]:
        return {"errors": [{"pointer": f"/payload{place}", "message": why} for place, why in self.mistakes]}


async def refuse_hopeless(engines: Engines, payload: Mapping[str, Json], addresses: Sequence[str]) -> None:
    """Raise `RefusedExport` with everything that is wrong with the payload of an `export.run`.

    `addresses`: where it may write in object stores.
    """
    mistakes: list[tuple[str, str]] = await in_thread(lambda: [*_mistakes(engines, payload, addresses)])
    if mistakes:
        raise RefusedExport(mistakes)


def _mistakes(engines: Engines, payload: Mapping[str, Json], addresses: Sequence[str]) -> Iterator[tuple[str, str]]:
    engine, sql, to = payload.get("engine", "duckdb"), payload.get("sql"), payload.get("to")
    dialect = engine if isinstance(engine, str) and engine in ENGINES else None
    if dialect is None:
        yield "/engine", f"there is no engine {engine!r:.80}; use one of: {', '.join(ENGINES)}"
    elif engines.needs_role(dialect) and not payload.get("role"):
        yield "/role", str(MissingRole())
    if not isinstance(sql, str) or not sql.strip():
        yield "/sql", "say what to export: one SELECT"
    elif len(sql) > LONGEST_SQL:
        yield "/sql", f"it has {len(sql):,} characters; at most {LONGEST_SQL:,}, so use a view"
    elif dialect is not None:
        catalog = payload.get("catalog")
        named = catalog if isinstance(catalog, str) else None
        for why in reasons_against(sql, dialect, files=dialect == "duckdb", catalog=named):
            yield "/sql", why
    yield from _of_options(payload)
    if not isinstance(to, str):
        yield "/to", "say where the files go: an absolute folder, s3://bucket/prefix or gs://bucket/prefix"
        return
    try:
        outside = bucket_refused(location_of(to), addresses)
    except PathRefused as refused:
        outside = str(refused)
    if outside is not None:
        yield "/to", outside


def _of_options(payload: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """What does not fit the rest of its arguments; the others have sentences of their own."""
    try:
        RunPayload.model_validate(payload)
    except ValidationError as invalid:
        for problem in invalid.errors(include_url=False, include_input=False):
            place = str(problem["loc"][0])
            if problem["type"] == "extra_forbidden":
                there = ", ".join(field.alias or name for name, field in RunPayload.model_fields.items())
                yield f"/{place}", f"there is no such argument; there are: {there}"
            elif place not in ("sql", "to", "engine"):
                yield f"/{place}", str(problem["msg"])
