"""Parameters that the routes of graphs share."""

from __future__ import annotations

from functools import partial
from typing import Annotated, cast

from fastapi import Depends, Header, Request
from pydantic import AfterValidator, Field

from holdfast.api import audit
from holdfast.api.acts import NotOwn, OwnerOf, Text
from holdfast.api.plane import caller_of, plane_of
from holdfast.services.graphs.durations import parse
from holdfast.services.graphs.instances import rows
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.setup import Graphs

# The role that queries run as in the engine, from the header X-Use-Case-Id. It has no default.
UseCase = Annotated[str | None, Header(alias="X-Use-Case-Id", min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_.:@/-]+$")]


def _valid(text: str) -> str:
    parse(text)
    return text


Duration = Annotated[str, Field(max_length=50, examples=["PT24H", "P1DT12H"]), AfterValidator(_valid)]
Title = Annotated[Text, Field(min_length=1, max_length=255)]
Description = Annotated[Text, Field(max_length=4000)]
Cores = Annotated[float, Field(ge=0.25, le=64)]
Gigabytes = Annotated[float, Field(ge=0.25, le=1024)]


def graphs_of(request: Request) -> Graphs:
    """The runtime and options of graphs in this process."""
    return cast("Graphs", plane_of(request).services["graphs"])


Here = Annotated[Graphs, Depends(graphs_of)]


async def readable(request: Request, instance_id: int) -> Instance:
    """The instance, if the caller may query it. A denial is audited, as for changes."""
    caller, pool = caller_of(request), plane_of(request).pool
    async with pool.connection() as conn:
        instance = await rows.get(conn, instance_id)
    if caller.only_own("instances.query") and instance.owner != caller.actor:
        async with pool.connection() as conn:
            await audit.write(conn, caller, "instances.query", f"instance/{instance_id}", request=request, outcome="denied")
        raise NotOwn(caller, "instances.query")
    return instance


def owner_of(instance_id: int) -> OwnerOf:
    """Reads the owner of an instance, for the check that somebody changes only their own."""
    return partial(_owner, instance_id=instance_id)


async def _owner(conn: rows.Conn, instance_id: int) -> str | None:
    return await rows.owner_of(conn, instance_id)
