"""Run an algorithm on a graph: choose it, fill in its parameters, follow its job, read the first rows of its result.

The form is sent to the route of the API, as the caller. A refusal is shown next to the form, with its values: 409 names the job
that holds the graph. Requests to the graph server count as use of the graph, so live regions read only the database; for a
minute after the end of a run they also read its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.api.problems import Problem
from holdfast.console.api_call import call
from holdfast.console.confirm import read_form
from holdfast.console.render import leave_note
from holdfast.console.view import Shown, View, link
from holdfast.jobs.model import JobId
from holdfast.jobs.states import ENDED, State
from holdfast.jobs.views.read import JobView, get_job
from holdfast.services.graphs.instances import rows
from holdfast.services.graphs.instances.jobs import ALGORITHM_KIND
from holdfast.services.graphs.instances.read import view_of
from holdfast.services.graphs.pages.algorithm_form import fields_of, request_of
from holdfast.services.graphs.pages.instances import tables_of
from holdfast.services.graphs.pages.query import cell
from holdfast.services.graphs.server.algorithms.catalog import ALGORITHMS, Algorithm
from holdfast.services.graphs.states import InstanceState

FIRST: Final = "pagerank"
TOP_ROWS: Final = 20
RUNS: Final = 10
LONGEST: Final = 200  # characters of a value that comes back with a refusal
JUST_NOW: Final = timedelta(minutes=1)
# 0 is the largest group, or the start of the path.
LOWEST_FIRST: Final = frozenset({"wcc", "scc", "louvain", "label_propagation", "shortest_path"})


async def show(view: View) -> Shown:
    """The form of one algorithm, the run in the address, and the newest runs."""
    instance = await rows.get(view.conn, view.path_number("instance_id"))
    algorithm = algorithm_of(view.given("algorithm", FIRST))
    run = await _run(view, instance.id) if view.number("run") else None
    is_running, fields = instance.status is InstanceState.RUNNING, fields_of(algorithm)
    values: dict[str, Any] = {
        "instance": view_of(instance),
        "is_running": is_running,
        "algorithms": list(ALGORITHMS.values()),
        "algorithm": algorithm,
        "fields": [(field, view.given(field.name, field.default)) for field in fields],
        "tables": tables_of(instance),
        "run": run,
        "asked": {} if run is None else run.payload,
        "ended": run is not None and State(run.state) in ENDED,
        "top": None,
        "runs": None,
        "target": target(instance.id),
    }

    async def asked_now() -> Mapping[str, Any]:
        is_fragment = "x-fragment" in view.request.headers
        more: dict[str, Any] = {}
        if run is not None and is_running and run.state == State.COMPLETED and not (is_fragment and _is_old(view, run)):
            more["top"] = await _top(view, instance.id, run)
        if is_running and not is_fragment:
            more["runs"] = await _runs(view, instance.id)
        return more

    return Shown("algorithms.html", values, title=f"Algorithms of {instance.name}", later=asked_now)


def target(instance_id: int) -> str:
    """What a refusal of the form is shown next to."""
    return f"algorithm/{instance_id}"


def algorithm_of(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        raise Problem("invalid-request", f"no algorithm {name!r}; there are: {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


async def _run(view: View, instance_id: int) -> JobView:
    """The job in the address, if it runs an algorithm on this graph."""
    job = await get_job(view.conn, JobId(view.number("run") or 0))
    if job.kind != ALGORITHM_KIND or not isinstance(job.payload, dict) or job.payload.get("instance_id") != instance_id:
        raise Problem("not-found", f"job {job.id} runs no algorithm on graph {instance_id}")
    return job


def _is_old(view: View, run: JobView) -> bool:
    return run.finished_at is None or view.now - run.finished_at > JUST_NOW


async def _top(view: View, instance_id: int, run: JobView) -> dict[str, Any]:
    """The first rows of the result, from the graph server."""
    assert isinstance(run.payload, dict)
    order = "asc" if run.payload.get("algorithm") in LOWEST_FIRST else "desc"
    path = f"/api/instances/{instance_id}/graph/algorithms/runs/{run.id}/result"
    reply = await call(view.request, "GET", path, query={"limit": str(TOP_ROWS), "order": order})
    if reply.is_refusal:
        return {"refusal": reply.sentence}
    return {"refusal": "", "columns": reply.body["columns"], "rows": [[cell(one) for one in row] for row in reply.body["rows"]]}


async def _runs(view: View, instance_id: int) -> dict[str, Any]:
    """The newest runs that the graph server knows."""
    reply = await call(view.request, "GET", f"/api/instances/{instance_id}/graph/algorithms/runs")
    if reply.is_refusal:
        return {"refusal": reply.sentence, "rows": []}
    return {"refusal": "", "rows": sorted(reply.body["runs"], key=lambda one: -int(one["id"]))[:RUNS]}


async def take(request: Request) -> Response:
    """Start the run, and go to its job; a refusal leads back to the form."""
    form = await read_form(request)
    algorithm = algorithm_of(form.get("algorithm", ""))
    instance_id = int(request.path_params["instance_id"]) if str(request.path_params["instance_id"]).isdecimal() else 0
    here = f"graphs/{instance_id}/algorithms"
    reply = await call(
        request, "POST", f"/api/instances/{instance_id}/algorithms/{algorithm.name}", request_of(algorithm, form)
    )
    kept = {field.name: form.get(field.name, "")[:LONGEST] for field in fields_of(algorithm)}
    if reply.is_refusal:
        response = RedirectResponse(link(request, here, algorithm=algorithm.name, **kept), 303)
        leave_note(response, request, target=target(instance_id), text=reply.sentence, refused=True)
        return response
    response = RedirectResponse(link(request, here, algorithm=algorithm.name, **kept, run=reply.data["id"]), 303)
    said = f"{algorithm.name} was started as job {reply.data['id']}."
    leave_note(response, request, target=target(instance_id), text=said, refused=False)
    return response
