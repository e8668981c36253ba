"""Pipelines: the list, and one pipeline as a graph and as a list."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from holdfast.api.problems import Problem
from holdfast.console.layers import draw
from holdfast.console.view import Shown, View
from holdfast.console.views.pipeline import MOST, read_nodes
from holdfast.jobs.pipelines import list_pipelines, read_pipeline

LENGTH: Final = 50
LISTED: Final = 200


async def show_list(view: View) -> Shown:
    """Pipelines, newest first."""
    found = await list_pipelines(view.conn, limit=LENGTH + 1, before=_before(view.given("before")))
    lines = found[:LENGTH]
    last = lines[-1] if len(found) > LENGTH else None
    older = None if last is None else view.here(before=f"{last.created_at.isoformat()}~{last.id}")
    return Shown(
        "pipelines.html",
        {"pipelines": lines, "older": older, "newest": view.link("pipelines"), "first": not view.given("before")},
    )


async def show_one(view: View) -> Shown:
    """One pipeline."""
    try:
        pipeline_id = str(UUID(str(view.request.path_params["pipeline_id"])))
    except ValueError:
        raise Problem("not-found", "this is not the id of a pipeline") from None
    pipeline = await read_pipeline(view.conn, pipeline_id)
    nodes = await read_nodes(view.conn, pipeline_id)
    values = {
        "pipeline": pipeline,
        "drawing": draw(nodes),
        "nodes": nodes[:LISTED],
        "hidden": max(0, len(nodes) - LISTED),
        "capped": len(nodes) == MOST,
        "total": sum(pipeline.counts.values()),
        "ended": pipeline.status != "running",
    }
    return Shown("pipeline.html", values, title=pipeline.name)


def _before(text: str) -> tuple[datetime, str] | None:
    """Where a page begins: the time and the id of the last pipeline of the page before it."""
    if not text:
        return None
    when, _, last = text.partition("~")
    try:
        return datetime.fromisoformat(when), str(UUID(last))
    except ValueError:
        raise Problem("invalid-request", "before is not the place of a pipeline; open the list again") from None
