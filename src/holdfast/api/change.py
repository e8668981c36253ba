"""Run a changing request in one transaction: idempotency key, ownership, the change, the audit entry, the stored response.

Without a web framework: `acts.py` runs the changes of requests over HTTP, `cli/writes.py` those of commands without a server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import psycopg

from holdfast.api import audit, idempotency
from holdfast.api.answers import Answer, jsonable
from holdfast.api.asked import Asked
from holdfast.api.plane import Principal
from holdfast.api.policy import POLICY
from holdfast.api.problems import Problem

Conn = psycopg.AsyncConnection[Any]
Connect = Callable[[], AbstractAsyncContextManager[Conn]]
Do = Callable[[Conn], Awaitable[Answer]]
OwnerOf = Callable[[Conn], Awaitable[str | None]]  # reads the owner of the row that is changed
NOT_SAID = "no reason was given"  # for routes whose specification has no field for a reason


class NotOwn(Problem):
    """The caller may do this only to its own objects."""

    def __init__(self, caller: Principal, action: str) -> None:
        super().__init__(
            "forbidden",
            f"the role {caller.role} may do this only to its own objects",
            required_roles=sorted(POLICY[action].roles),
        )


class ReasonRequired(Problem):
    """An operator acts on what another user made and gives no reason."""

    def __init__(self, thing: str) -> None:
        message = f"This {thing.partition('/')[0]} belongs to someone else; a reason is required"
        super().__init__("invalid-request", message, errors=[{"pointer": "/body/reason", "message": message}])


class Change:
    """One changing request, as an action of its caller."""

    is_alias = False  # whether the request used an alias of the path, which exists for compatibility

    def __init__(self, request: Asked, caller: Principal, action: str, connection: Connect) -> None:
        self.request, self.caller, self.action, self._connection = request, caller, action, connection

    @property
    def actor(self) -> str:
        return self.caller.actor

    async def perform(
        self,
        thing: str,
        do: Do,
        *,
        owner: OwnerOf | None = None,
        reason: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Run the action in one transaction. `thing` is its name in the audit log; for a new object it comes from `Location`.

        An action that some roles may do only to their own objects needs `owner`.
        """
        assert owner is not None or not POLICY[self.action].own, f"{self.action} depends on the owner"
        assert reason or not POLICY[self.action].needs_reason, f"{self.action} is audited with its reason"
        try:
            return await self._in_one_transaction(thing, do, owner, reason, dict(detail or {}))
        except NotOwn:  # nothing was changed; the attempt is audited in a separate transaction
            async with self._connection() as conn:
                await audit.write(conn, self.caller, self.action, thing, request=self.request, outcome="denied")
            raise

    async def _in_one_transaction(
        self, thing: str, do: Do, owner: OwnerOf | None, reason: str | None, detail: dict[str, Any]
    ) -> Answer:
        key = idempotency.key_of(self.request)
        async with self._connection() as conn, conn.transaction():
            if key is not None:
                stored = await idempotency.reserve(conn, self.request, self.actor, key)
                if stored is not None:
                    return Answer(stored.status, stored.body["data"], {**stored.headers, "Idempotency-Replayed": "true"})
            is_others = owner is not None and await owner(conn) != self.actor
            if is_others and self.caller.only_own(self.action):
                raise NotOwn(self.caller, self.action)
            answer = await do(conn)
            if is_others and reason is None:  # last, because "not found" and "wrong state" have precedence
                reason = self._default_reason(thing)
            data = jsonable(answer.data)
            named = self._made(answer) or thing
            await audit.write(conn, self.caller, self.action, named, request=self.request, reason=reason, detail=detail)
            if key is not None:
                await idempotency.store(conn, self.actor, key, answer, data)
        return replace(answer, data={**data, **answer.shown_once} if answer.shown_once else data)

    def _default_reason(self, thing: str) -> str:
        """The reason to record if an operator may omit it for an object of another owner; otherwise a problem."""
        if POLICY[self.action].asks_why and not self.is_alias:
            raise ReasonRequired(thing)
        return NOT_SAID

    def _made(self, answer: Answer) -> str | None:
        """The object that an action created, from its address: /api/jobs/7 is job/7."""
        if self.request.method == "DELETE":  # the address is that of the job that deletes the object
            return None
        location = answer.headers.get("Location", "")
        noun, _, name = location.removeprefix("/api/").partition("/")
        return f"{noun.removesuffix('s')}/{name}" if name else None
