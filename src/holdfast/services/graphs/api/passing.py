"""Pass requests of users on to the graph server of an instance: queries, schema, status, results of algorithms.

The caller sends their own token; the control plane checks it, and sends the graph server's secret itself. Responses are
streamed, so a large result needs no memory here. Every request counts as activity.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any

import psycopg
from fastapi import Path, Request
from starlette.responses import Response, StreamingResponse

from holdfast.api.paging import JobNumber
from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.services.graphs.api.dependencies import Here, readable
from holdfast.services.graphs.instances import change
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.proxy import PASSED_BACK
from holdfast.services.graphs.setup import Graphs
from holdfast.services.graphs.states import InstanceState

routes = Routes("instances")

Conn = psycopg.AsyncConnection[Any]
ServerPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_.-]+)*$", max_length=200)]
REFUSES = ["not-found", "graph-not-running", "graph-unreachable", "refused"]
OTHERS = [(status, "As the graph server answers") for status in (201, 202, 204, 400, 406, 408)]


async def running_instance(request: Request, instance_id: int) -> Instance:
    """The instance, if the caller may query it and it runs."""
    instance = await readable(request, instance_id)
    if instance.status is not InstanceState.RUNNING:
        raise Problem(
            "graph-not-running", f"graph instance {instance_id} is {instance.status}", current_state=str(instance.status)
        )
    async with plane_of(request).pool.connection() as conn:
        await change.note_activity(conn, instance_id)
    return instance


async def passed_on(request: Request, here: Graphs, instance_id: int, path: str) -> Response:
    """Send the request to the graph server, and stream its response back."""
    instance = await running_instance(request, instance_id)
    assert instance.address is not None, "a running instance has an address"
    stack = AsyncExitStack()
    sending = here.proxy.send(
        request.method,
        instance.address,
        path,
        secret=instance.secret,
        query=request.url.query,
        headers=request.headers,
        body=await request.body(),
    )
    answer = await stack.enter_async_context(sending)
    if answer.status_code >= 500 or answer.status_code in (401, 403):
        await stack.aclose()
        raise Problem("graph-unreachable", f"the graph server answered with status {answer.status_code}")

    async def content() -> AsyncIterator[bytes]:
        async with stack:
            async for some in answer.aiter_raw():
                yield some

    headers = {name: answer.headers[name] for name in PASSED_BACK if name in answer.headers}
    return StreamingResponse(content(), answer.status_code, headers)


@routes.add(
    "GET", "/api/instances/{instance_id}/graph/{path:path}", action="instances.query", refuses=REFUSES, others=OTHERS,
    any_query=True,
)  # fmt: skip
async def get_from_graph(request: Request, instance_id: JobNumber, path: ServerPath, here: Here) -> Response:
    """Read from the graph server: `schema`, `status`, `lock`, `algorithms`, `algorithms/runs/{job_id}/result`."""
    return await passed_on(request, here, instance_id, path)


@routes.add(
    "POST", "/api/instances/{instance_id}/graph/query", action="instances.query", refuses=REFUSES, others=OTHERS,
    any_query=True,
)  # fmt: skip
async def query_graph(request: Request, instance_id: JobNumber, here: Here) -> Response:
    """Run Cypher. JSON, Arrow or CSV by the header Accept."""
    return await passed_on(request, here, instance_id, "query")
