"""One act, one transaction: replay or reserve, look whose it is, do it, write it into the audit, keep the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

import psycopg
from fastapi import Depends, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from holdfast.api import audit, idempotency
from holdfast.api.envelope import Answer, jsonable
from holdfast.api.plane import Principal, caller_of, plane_of
from holdfast.api.policy import POLICY
from holdfast.api.problems import Problem
from holdfast.api.routes import is_alias

Do = Callable[[psycopg.AsyncConnection[Any]], Awaitable[Answer]]
OwnerOf = Callable[
    [psycopg.AsyncConnection[Any]], Awaitable[str | None]
]  # reads the owner's column of the row that is acted on


def _storable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("a NUL character cannot be stored")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is not text") from None
    return text


Text = Annotated[str, AfterValidator(_storable)]  # what Postgres can take
NOT_SAID = "no reason was given"  # by an operator at an address of a document, which has no place for one
Reason = Annotated[Text, Field(min_length=1, max_length=500, description="Why; it stands in the audit.")]


class Model(BaseModel):
    """A body: what it does not name is refused."""

    model_config = ConfigDict(extra="forbid")


class Because(Model):
    """The body of an act that needs nothing but its reason."""

    reason: Reason


class NotOwn(Problem):
    """Somebody may do this, but only to what they made themselves."""

    def __init__(self, caller: Principal, action: str) -> None:
        super().__init__(
            "forbidden", f"the role {caller.role} may do this to its own only", required_roles=sorted(POLICY[action].roles)
        )


class NotSaidWhy(Problem):
    """An operator's act on what somebody else made, without its reason."""

    def __init__(self, thing: str) -> None:
        why = "why? It is not yours, so the audit wants the reason"
        super().__init__(
            "invalid-request", f"/body/reason: {thing}: {why}", errors=[{"pointer": "/body/reason", "message": why}]
        )


class Act:
    """The request at hand, as an act of its caller."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.caller: Principal = caller_of(request)
        self.action: str = request.state.action
        self.plane = plane_of(request)

    @property
    def actor(self) -> str:
        return self.caller.actor

    async def run(
        self,
        thing: str,
        do: Do,
        *,
        owner: OwnerOf | None = None,
        reason: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> Response:
        """Do it, all or nothing. `thing` is what the audit calls it; an act that makes it says so in the answer's Location.

        An action that some roles may do only to their own needs `owner`.
        """
        assert owner is not None or not POLICY[self.action].own, f"{self.action} depends on the owner"
        assert reason or not POLICY[self.action].needs_reason, f"{self.action} is audited with its reason"
        try:
            return await self._in_one_transaction(thing, do, owner, reason, dict(detail or {}))
        except NotOwn:  # nothing was done; that it was tried is written down by itself
            async with self.plane.pool.connection() as conn:
                await audit.write(conn, self.caller, self.action, thing, request=self.request, outcome="denied")
            raise

    async def _in_one_transaction(
        self, thing: str, do: Do, owner: OwnerOf | None, reason: str | None, detail: dict[str, Any]
    ) -> Response:
        key = idempotency.key_of(self.request)
        async with self.plane.pool.connection() as conn, conn.transaction():
            if key is not None:
                stored = await idempotency.reserve(conn, self.request, self.actor, key)
                if stored is not None:
                    return JSONResponse(stored.body, stored.status, {**stored.headers, "Idempotency-Replayed": "true"})
            is_others = owner is not None and await owner(conn) != self.actor
            if is_others and self.caller.only_own(self.action):
                raise NotOwn(self.caller, self.action)
            answer = await do(conn)
            if is_others and reason is None:  # only now: that there is no such thing, or that it is too late, counts more
                reason = self._default_reason(thing)
            data = jsonable(answer.data)
            named = self._made(answer) or thing
            await audit.write(conn, self.caller, self.action, named, request=self.request, reason=reason, detail=detail)
            if key is not None:
                await idempotency.store(conn, self.actor, key, answer, data)
        return JSONResponse(
            {"data": {**data, **answer.shown_once} if answer.shown_once else data}, answer.status, answer.headers
        )

    def _default_reason(self, thing: str) -> str:
        """What the audit has where an operator's act on what somebody else made may come without a reason; else a problem."""
        if POLICY[self.action].asks_why and not is_alias(self.request):
            raise NotSaidWhy(thing)
        return NOT_SAID

    @staticmethod
    def _made(answer: Answer) -> str | None:
        """What an act made, by its address: /api/jobs/7 is job/7."""
        location = answer.headers.get("Location", "")
        noun, _, name = location.removeprefix("/api/").partition("/")
        return f"{noun.removesuffix('s')}/{name}" if name else None


Acting = Annotated[Act, Depends(Act)]
