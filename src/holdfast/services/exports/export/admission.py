"""Is it worth a job? What an `export.run` says is looked at before it is enqueued: whoever asked is still there to mend it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.errors import PayloadInvalid
from holdfast.jobs.model import Json
from holdfast.services.exports.engines.opened import Engines
from holdfast.services.exports.engines.opening import ENGINES
from holdfast.services.exports.engines.port import MissingRole
from holdfast.services.exports.mappings.rules import LONGEST_SQL
from holdfast.services.exports.mappings.select import reasons_against
from holdfast.services.exports.stores.paths import PathRefused, location_of
from holdfast.worker.threads import in_thread


class RefusedExport(PayloadInvalid):
    """A job that could only fail; `mistakes` has every reason, by its place in the payload."""

    def __init__(self, mistakes: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{place[1:]}: {why}" for place, why in mistakes))
        self.mistakes = mistakes

    def members(self) -> dict[str, Any]:
        return {"errors": [{"pointer": f"/payload{place}", "message": why} for place, why in self.mistakes]}


async def refuse_hopeless(engines: Engines, payload: Mapping[str, Json]) -> None:
    """Raise `RefusedExport` with everything that is wrong with the payload of an `export.run`."""
    mistakes: list[tuple[str, str]] = await in_thread(lambda: [*_mistakes(engines, payload)])
    if mistakes:
        raise RefusedExport(mistakes)


def _mistakes(engines: Engines, payload: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    engine, sql, to = payload.get("engine", "duckdb"), payload.get("sql"), payload.get("to")
    if engine not in ENGINES:
        yield "/engine", f"there is no engine {engine!r}; use one of: {', '.join(ENGINES)}"
    elif engines.needs_role(engine) and not payload.get("role"):
        yield "/role", str(MissingRole())
    if not isinstance(sql, str) or not sql.strip():
        yield "/sql", "say what to export: one SELECT"
    elif len(sql) > LONGEST_SQL:
        yield "/sql", f"it has {len(sql):,} characters; at most {LONGEST_SQL:,}, so use a view"
    elif engine in ENGINES:
        for why in reasons_against(sql, engine, files=engine == "duckdb"):
            yield "/sql", why
    if not isinstance(to, str):
        yield "/to", "say where the files go: an absolute folder, s3://bucket/prefix or gs://bucket/prefix"
        return
    try:
        location_of(to)
    except PathRefused as refused:
        yield "/to", str(refused)
