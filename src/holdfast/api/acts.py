"""Run a changing request over HTTP: `change.py` has the transaction, the audit entry and the idempotency key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from holdfast.api.bodies import Because, Reason, Text
from holdfast.api.change import NOT_SAID, Change, Do, NotOwn, OwnerOf, ReasonRequired
from holdfast.api.envelope import respond_with
from holdfast.api.plane import caller_of, plane_of


class Model(BaseModel):
    """A request body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


def is_alias(request: Request) -> bool:
    """Whether the request used an alias of the route's path, which exists for compatibility."""
    return "x-alias-of" in (getattr(request.scope.get("route"), "openapi_extra", None) or {})


class Act(Change):
    """The current request, as an action of its caller."""

    def __init__(self, request: Request) -> None:
        self.plane = plane_of(request)
        super().__init__(request, caller_of(request), request.state.action, self.plane.pool.connection)
        self.is_alias = is_alias(request)

    async def run(
        self,
        thing: str,
        do: Do,
        *,
        owner: OwnerOf | None = None,
        reason: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> Response:
        """Perform the action, and respond with its answer."""
        return respond_with(await self.perform(thing, do, owner=owner, reason=reason, detail=detail))


Acting = Annotated[Act, Depends(Act)]
__all__ = ["NOT_SAID", "Act", "Acting", "Because", "Do", "Model", "NotOwn", "OwnerOf", "Reason", "ReasonRequired", "Text"]
