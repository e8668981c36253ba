"""Graphs: the list, and one graph with its progress, events, limits, health and log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.api.problems import Problem
from holdfast.console.api_call import call
from holdfast.console.view import Shown, View
from holdfast.services.graphs.instances import admission, events, read, rows
from holdfast.services.graphs.instances.read import view_of
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.states import MOVING, InstanceState

LENGTH: Final = 50
EVENTS: Final = 50
LOG_LINES: Final = 100
OPENING: Final = MOVING | {InstanceState.WAITING_FOR_SNAPSHOT}
TONES: Final = {"started": "completed", "failed": "failed", "resize_failed": "failed", "suspended": "retrying"}


async def show_list(view: View) -> Shown:
    """Graph instances, newest first, by the filter in the address."""
    status, search, owner = view.given("status") or None, view.given("search").strip(), view.given("owner").strip()
    if status not in (None, *InstanceState):
        raise Problem("invalid-request", f"no status {status!r}; there are: {', '.join(InstanceState)}")
    filters = {"before": view.number("before"), "status": status, "search": search or None, "owner": owner or None}
    found = await read.listed(view.conn, limit=LENGTH, **filters)
    shown = [view_of(one) for one in found[:LENGTH]]
    values = {
        "instances": shown,
        "status": status,
        "search": search,
        "owner": owner,
        "statuses": list(InstanceState),
        "older": view.here(before=shown[-1].id) if len(found) > LENGTH else None,
        "newest": view.here(before=None) if filters["before"] else None,
    }
    return Shown("instances.html", values)


async def show_one(view: View) -> Shown:
    """One graph. The runtime is asked only when the page is opened, not by its live regions."""
    instance = await rows.get(view.conn, view.path_number("instance_id"))
    found = await events.listed(view.conn, instance.id, limit=EVENTS)
    values = {
        "instance": view_of(instance),
        "state_since": instance.state_since,
        "is_opening": instance.status in OPENING,
        "progress": await read.progress_of(view.conn, instance),
        "tables": tables_of(instance),
        "events": found[:EVENTS],
        "more_events": len(found) > EVENTS,
        "tones": TONES,
        "usage": await admission.usage(view.conn, instance.owner),
        "health": None,
        "log": None,
    }

    async def asked_now() -> Mapping[str, Any]:
        return {} if "x-fragment" in view.request.headers else await _asked_now(view, instance.id)

    return Shown("instance.html", values, title=instance.name, later=asked_now)


async def _asked_now(view: View, instance_id: int) -> Mapping[str, Any]:
    """The health and the last lines of the log, by the routes of the API and as the caller."""
    health = await call(view.request, "GET", f"/api/instances/{instance_id}/health")
    found: dict[str, Any] = {
        "health": health.data or {"healthy": False, "server": None, "runtime": None, "message": health.sentence}
    }
    if view.may("instances.query"):
        log = await call(view.request, "GET", f"/api/instances/{instance_id}/logs", query={"tail": str(LOG_LINES)})
        found["log"] = {"refusal": log.sentence, "lines": []} if log.is_refusal else {"refusal": "", **log.data}
    return found


def tables_of(instance: Instance) -> list[dict[str, Any]]:
    """The tables that a graph server loads or has loaded, as it said last. Pure."""
    said = instance.progress.get("tables") if isinstance(instance.progress, dict) else None
    return [one for one in said if isinstance(one, dict) and "name" in one] if isinstance(said, list) else []
