"""Maintenance policies: store, read, delete, and preview what they would do; and the savings of all runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import psycopg
from fastapi import Path, Query, Request
from pydantic import RootModel
from starlette.responses import Response

from holdfast.api.acts import Acting, Model, Text
from holdfast.api.envelope import UNCHANGED, Answer, Data, Listed, respond, respond_tagged
from holdfast.api.paging import Paged
from holdfast.api.plane import plane_of
from holdfast.api.routes import Routes
from holdfast.services.maintenance.api.dependencies import Here
from holdfast.services.maintenance.engines.actions import Problem as Mistake
from holdfast.services.maintenance.engines.limits import missing
from holdfast.services.maintenance.policies import preview, store
from holdfast.services.maintenance.policies.definition import Policy, parse_policy
from holdfast.services.maintenance.policies.preview import Preview
from holdfast.services.maintenance.run.request import RequestInvalid, check_engine
from holdfast.services.maintenance.savings import Month, by_month
from holdfast.services.maintenance.setup import Maintenance

routes = Routes("maintenance policies")

Conn = psycopg.AsyncConnection[Any]
PolicyName = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$")]


class Definition(RootModel[dict[str, Any]]):
    """The definition of a policy: `match`, `actions`, and `schedule`, `every` or `when`."""


@dataclass(frozen=True, slots=True)
class PolicyView:
    """A policy with its definition and its due times."""

    name: str
    definition: dict[str, Any]
    version: int
    enabled: bool
    actions: list[str]
    created_by: str
    created_at: datetime
    updated_by: str
    updated_at: datetime
    next_due_at: datetime | None
    last_due_at: datetime | None


def view_of(stored: store.StoredPolicy) -> PolicyView:
    """A policy for people. Pure."""
    policy = stored.policy
    return PolicyView(
        stored.name,
        stored.definition,
        stored.version,
        policy.enabled,
        [action.name for action in policy.actions],
        stored.created_by,
        stored.created_at,
        stored.updated_by,
        stored.updated_at,
        stored.next_due_at,
        stored.last_due_at,
    )


def parsed(given: dict[str, Any], name: str | None, here: Maintenance) -> Policy:
    """The policy, or a problem whose pointers are those of the body. Its jobs must be able to run here."""
    try:
        policy = parse_policy(given, name=name)
    except RequestInvalid as invalid:
        raise RequestInvalid([Mistake(f"/body{one.pointer}", one.message) for one in invalid.problems]) from None
    engine, problems = policy.engine or here.default_engine, list[Mistake]()
    check_engine(engine, here.engine_names, "/body/engine", problems)
    if policy.engine is None:  # with an engine of its own, it is checked already
        lacks = ((action, one) for action in policy.actions for one in missing(engine, action))
        problems += [Mistake("/body/actions", one.sentence(engine, action)) for action, one in lacks]
    if problems:
        raise RequestInvalid(problems)
    return policy


@routes.add(
    "GET", "/api/maintenance-policies", action="maintenance_policies.read", answers=Listed[PolicyView],
    refuses=["invalid-cursor"],
)  # fmt: skip
async def list_policies(request: Request, page: Paged) -> Response:
    """List the policies by name."""
    async with plane_of(request).pool.connection() as conn:
        found = await store.listed(conn, limit=page.limit + 1, after=page.after or "")
    some = found[: page.limit]
    return page.answer([view_of(one) for one in some], some[-1].name if len(found) > page.limit else None)


@routes.add(
    "POST", "/api/maintenance-policies/preview", action="maintenance_policies.read", answers=Data[Preview],
    refuses=["validation-failed"],
)  # fmt: skip
async def preview_policy(request: Request, definition: Definition, here: Here) -> Response:
    """Check a definition, and list the tables that it would maintain and its next five runs. Stores nothing."""
    policy = parsed(definition.root, None, here)
    async with plane_of(request).pool.connection() as conn:
        return respond(await preview.of(conn, policy, default_engine=here.default_engine))


@routes.add(
    "GET", "/api/maintenance-policies/{name}", action="maintenance_policies.read", answers=Data[PolicyView],
    refuses=["not-found"], others=[UNCHANGED],
)  # fmt: skip
async def show_policy(request: Request, name: PolicyName) -> Response:
    """Show one policy."""
    async with plane_of(request).pool.connection() as conn:
        return respond_tagged(request, view_of(await store.get(conn, name)))


@routes.add(
    "GET", "/api/maintenance-policies/{name}/preview", action="maintenance_policies.read", answers=Data[Preview],
    refuses=["not-found"],
)  # fmt: skip
async def preview_stored(request: Request, name: PolicyName, here: Here) -> Response:
    """List the tables that a stored policy would maintain now, and its next five runs."""
    async with plane_of(request).pool.connection() as conn:
        policy = (await store.get(conn, name)).policy
        return respond(await preview.of(conn, policy, default_engine=here.default_engine))


class PolicyPut(Model):
    """The policy as it is stored now, and whether this request changed it."""

    changed: bool
    policy: PolicyView


@routes.add(
    "PUT", "/api/maintenance-policies/{name}", action="maintenance_policies.write", answers=Data[PolicyPut],
    refuses=["validation-failed", "idempotency-mismatch"],
)  # fmt: skip
async def put_policy(name: PolicyName, definition: Definition, here: Here, act: Acting) -> Response:
    """Create or replace a policy. Reports every mistake at once."""
    policy = parsed(definition.root, name, here)

    async def do(conn: Conn) -> Answer:
        changed = await store.put(conn, policy, definition.root, actor=act.actor)
        return Answer(200, {"changed": changed, "policy": view_of(await store.get(conn, name))})

    return await act.run(f"maintenance-policy/{name}", do, detail={"definition": definition.root})


class PolicyGone(Model):
    """The name of the deleted policy."""

    name: str


@routes.add(
    "DELETE", "/api/maintenance-policies/{name}", action="maintenance_policies.write", answers=Data[PolicyGone],
    refuses=["not-found", "idempotency-mismatch"],
)  # fmt: skip
async def delete_policy(name: PolicyName, act: Acting) -> Response:
    """Delete a policy. Jobs that it has enqueued continue."""

    async def do(conn: Conn) -> Answer:
        await store.delete(conn, name)
        return Answer(200, {"name": name})

    return await act.run(f"maintenance-policy/{name}", do)


# ---------------------------------------------------------------------------------------------------------------------
# Savings
# ---------------------------------------------------------------------------------------------------------------------


@routes.add("GET", "/api/savings", action="tables.read", answers=Data[list[Month]])
async def show_savings(
    request: Request,
    here: Here,
    since: datetime | None = None,
    catalog: Annotated[Text | None, Query(max_length=255)] = None,
) -> Response:
    """What maintenance saved and cost in each month (UTC), newest first. Money only if a price is configured: an estimate."""
    async with plane_of(request).pool.connection() as conn:
        return respond(await by_month(conn, here.prices, since=since, catalog=catalog))
