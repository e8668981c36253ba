"""Parameters and checks that the routes of exports share: engines, role, durations, dry run."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Header, Request
from pydantic import AfterValidator, Field

from holdfast.api.acts import Text
from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem
from holdfast.engines.port import EngineError, MissingRole, QueryRefused
from holdfast.services.exports.durations import parse
from holdfast.services.exports.mappings.definitions import Graph
from holdfast.services.exports.mappings.dry_run import check
from holdfast.services.exports.mappings.rules import InvalidMapping, Mistake
from holdfast.services.exports.setup import Exports

# The role that queries run as in the engine, from the header X-Use-Case-Id. It has no default.
UseCase = Annotated[str | None, Header(alias="X-Use-Case-Id", min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_.:@/-]+$")]


def _positive(text: str) -> str:
    parse(text)
    return text


Duration = Annotated[
    str, Field(pattern=r"^(PT[0-9]{1,6}[HM]|P[0-9]{1,5}[DW])$", examples=["P7D", "PT24H"]), AfterValidator(_positive)
]
Title = Annotated[Text, Field(min_length=1, max_length=255)]
Description = Annotated[Text, Field(max_length=4000)]


def exports_of(request: Request) -> Exports:
    """The engines and options of exports in this process."""
    return cast("Exports", plane_of(request).services["exports"])


Here = Annotated[Exports, Depends(exports_of)]


def require_role(here: Exports, engine: str, role: str | None) -> None:
    """Refuse a request without a role if the engine needs one."""
    if role is None and here.engines.capabilities(engine).needs_role:
        raise Problem("missing-use-case", str(MissingRole()))


async def dry_run(here: Exports, engine: str, graph: Graph, role: str | None) -> None:
    """Validate definitions by the rules, the parser and the engine. Raises one problem with all mistakes."""
    if engine not in here.engines.names:
        raise InvalidMapping(
            [Mistake("/engine", f"the engine {engine!r} is not configured; use one of: {', '.join(here.engines.names)}")]
        )
    require_role(here, engine, role)
    try:
        await check(graph, here.engines.get(engine), role=role, files=here.files_allowed)
    except QueryRefused as refused:
        raise Problem("validation-failed", str(refused)) from None
    except EngineError as error:
        raise Problem("engine-unavailable", str(error), headers={"Retry-After": "5"}, engine=engine) from None
