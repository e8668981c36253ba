"""Cypher: a form, and its result as a table, as JSON or as a drawing; a click on a node adds its neighbours.

The statement is in the address, so a result can be shared and opened again. It runs as the caller through the route of the API,
which checks role and owner; graph servers refuse everything but reading. A link from another site fills the form and runs
nothing. No script is needed.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response

from holdfast.api.problems import Problem
from holdfast.console.api_call import Reply, call
from holdfast.console.view import Shown, View
from holdfast.services.graphs.client.results import text_of
from holdfast.services.graphs.instances import rows
from holdfast.services.graphs.instances.read import view_of
from holdfast.services.graphs.pages.instances import tables_of
from holdfast.services.graphs.pages.network import collect, draw
from holdfast.services.graphs.states import InstanceState

LONGEST: Final = 4_000  # characters: a statement is in the address
SHOWN_ROWS: Final = 200
FILE_ROWS: Final = 10_000
TIMEOUT: Final = 30_000  # milliseconds
MOST_EXPANDED: Final = 10
NEIGHBOURS: Final = 60  # rows for each node that is expanded
LONGEST_CELL: Final = 300
FORMS: Final = ("table", "json", "graph")
FILES: Final = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
NUMBERS: Final = re.compile(r"^U?INT\d*|^DOUBLE|^FLOAT|^DECIMAL|^SERIAL")
EXAMPLES: Final = (
    "MATCH (n) RETURN label(n) AS label, count(*) AS nodes ORDER BY nodes DESC",
    "MATCH (a)-[e]->(b) RETURN a, e, b LIMIT 25",
    "MATCH (n) RETURN n LIMIT 25",
)


async def show(view: View) -> Shown:
    """The form; with `q` in the address the result, too."""
    instance = await rows.get(view.conn, view.path_number("instance_id"))
    cypher = view.request.query_params.get("q", "").strip()
    form, wanted = view.given("as", "table"), view.given("file")
    if form not in FORMS or wanted not in ("", *FILES):
        raise Problem("invalid-request", f"as is one of {', '.join(FORMS)}, and file is one of {', '.join(FILES)}")
    expanded = expanded_of(view.given("expand"))
    values: dict[str, Any] = {
        "instance": view_of(instance),
        "is_running": instance.status is InstanceState.RUNNING,
        "cypher": cypher,
        "form": form,
        "expanded": expanded,
        "toggled": lambda key: ",".join(toggled(expanded, key)),
        "examples": EXAMPLES,
        "tables": tables_of(instance),
        "shown_rows": SHOWN_ROWS,
        "file_rows": FILE_ROWS,
        "longest": LONGEST,
        "refusal": refusal_before(view, cypher),
        "result": None,
    }

    async def answered() -> Mapping[str, Any] | Response:
        if not cypher or values["refusal"]:
            return {}
        if wanted:
            return await _file(view, instance.id, cypher, wanted)
        return await _result(view, instance.id, cypher, form, expanded)

    return Shown("query.html", values, title=f"Query {instance.name}", later=answered)


def refusal_before(view: View, cypher: str) -> str:
    """Why the statement is not sent at all; "" if it is."""
    if len(cypher) > LONGEST:
        return f"The statement has {len(cypher):,} characters; this page sends up to {LONGEST:,}. Use holdfast graph query."
    if cypher and view.request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "This statement came from another site and was not run. Read it, then press Run."
    return ""


def expanded_of(text: str) -> list[str]:
    """The nodes to expand: `0:1,0:7` is a list of tables and offsets."""
    given = [one for one in text.split(",") if one]
    if len(given) > MOST_EXPANDED or not all(re.fullmatch(r"\d{1,9}:\d{1,18}", one, re.ASCII) for one in given):
        raise Problem("invalid-request", f"expand has up to {MOST_EXPANDED} nodes as table:offset, such as 0:1,0:7")
    return list(dict.fromkeys(given))


def toggled(expanded: Sequence[str], key: str) -> list[str]:
    """The expanded nodes after a click on this one; the oldest is dropped if there would be too many. Pure."""
    others = [one for one in expanded if one != key]
    return others if key in expanded else [*others, key][-MOST_EXPANDED:]


async def _sent(view: View, instance_id: int, cypher: str, most: int) -> Reply:
    """Run a statement by the route of the API, as the caller."""
    body = {"query": cypher, "max_rows": most, "timeout_ms": TIMEOUT}
    return await call(view.request, "POST", f"/api/instances/{instance_id}/graph/query", body)


async def _result(view: View, instance_id: int, cypher: str, form: str, expanded: Sequence[str]) -> Mapping[str, Any]:
    reply = await _sent(view, instance_id, cypher, SHOWN_ROWS)
    if reply.is_refusal:
        return {"refusal": reply.sentence}
    body = reply.body
    found = collect(body["rows"])
    result: dict[str, Any] = {
        "columns": body["columns"],
        "numeric": [bool(NUMBERS.match(str(kind))) for kind in body["column_types"]],
        "count": len(body["rows"]),
        "truncated": body["truncated"],
        "milliseconds": body["execution_time_ms"],
        "nodes": len(found.nodes),
        "edges": len(found.edges),
    }
    more: dict[str, Any] = {"result": result}
    if form == "table":
        result["cells"] = [[cell(value) for value in row] for row in body["rows"]]
    elif form == "json":
        result["json"] = json.dumps(objects(body), indent=2, ensure_ascii=False)
    else:
        if expanded:
            near = await _sent(view, instance_id, expansion(expanded), NEIGHBOURS * len(expanded))
            more["refusal"] = near.sentence if near.is_refusal else ""
            found = collect(near.body.get("rows", ()), found)
        result["network"] = await asyncio.to_thread(draw, found)
    return more


def expansion(expanded: Sequence[str]) -> str:
    """The statement that reads the neighbours of these nodes. Pure."""
    which = " OR ".join(f"id(n) = internal_id({one.replace(':', ', ')})" for one in expanded)
    return f"MATCH (n)-[e]-(m) WHERE {which} RETURN n, e, m"


async def _file(view: View, instance_id: int, cypher: str, wanted: str) -> Mapping[str, Any] | Response:
    """The result as a file; the page with the refusal if there is none."""
    reply = await _sent(view, instance_id, cypher, FILE_ROWS)
    if reply.is_refusal:
        return {"refusal": reply.sentence}
    content = as_csv(reply.body) if wanted == "csv" else json.dumps(objects(reply.body), indent=2, ensure_ascii=False)
    headers = {"Content-Disposition": f'attachment; filename="graph-{instance_id}.{wanted}"', "Cache-Control": "no-store"}
    return Response(content, headers=headers, media_type=FILES[wanted])


# ---------------------------------------------------------------------------------------------------------------------
# Rows as text. Pure
# ---------------------------------------------------------------------------------------------------------------------


def objects(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows as objects."""
    return [dict(zip(body["columns"], row, strict=True)) for row in body["rows"]]


def as_csv(body: Mapping[str, Any]) -> str:
    """The rows as the graph server writes CSV: a nested value is JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(body["columns"])
    for row in body["rows"]:
        writer.writerow([json.dumps(one, ensure_ascii=False) if isinstance(one, dict | list) else one for one in row])
    return text.getvalue()


def cell(value: Any) -> str | None:
    """A value in a table; None: it is null."""
    if value is None or isinstance(value, str):
        text = value
    elif isinstance(value, dict) and "_LABEL" in value:
        text = text_of(value)
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if text is None or len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"
