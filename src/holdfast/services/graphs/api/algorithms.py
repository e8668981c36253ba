"""Run algorithms on graph instances: each run is a job, which is polled, cancelled and retried as every job.

The graph server checks the request before the job is made, so a wrong one is refused at once and with the server's own words.
The rows of a completed run are read from the graph server: `GET …/graph/algorithms/runs/{job_id}/result`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, Final

import psycopg
from fastapi import Path, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from holdfast.api.acts import Acting, Model, Text
from holdfast.api.envelope import Answer, Data
from holdfast.api.job_changes import shown
from holdfast.api.paging import JobNumber
from holdfast.api.problems import Problem
from holdfast.api.routes import PROBLEM_JSON, Routes
from holdfast.errors import LockBusy, NotFound
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.model import JobId
from holdfast.jobs.owner import set_owner
from holdfast.jobs.views.read import JobView, get_job
from holdfast.services.graphs.api.dependencies import Here, owner_of
from holdfast.services.graphs.api.passing import running_instance
from holdfast.services.graphs.instances.jobs import algorithm_job

routes = Routes("instances")

Conn = psycopg.AsyncConnection[Any]
LONGEST_SECONDS: Final = 1800.0
Name = Annotated[str, Path(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,49}$", description="The algorithm, such as pagerank.")]
Word = Annotated[Text, Field(min_length=1, max_length=200)]
Words = Annotated[list[Word], Field(max_length=1000)]
AS_THE_SERVER: Final = [(400, "The graph server refuses the request: a problem that names what is wrong")]


class RunAsked(Model):
    """What to run. `GET …/graph/algorithms` lists the algorithms with their parameters."""

    node_labels: Annotated[Words | None, Field(description="Only nodes of these labels.")] = None
    edge_types: Annotated[Words | None, Field(description="Only edges of these types.")] = None
    weight: Annotated[Word | None, Field(description="Property of the edges that is their weight.")] = None
    property: Annotated[Word | None, Field(description="Also write the result to this property of the nodes.")] = None
    parameters: Annotated[dict[str, Any] | None, Field(description="Parameters of the algorithm.")] = None
    timeout_seconds: Annotated[float, Field(gt=0, le=LONGEST_SECONDS)] = LONGEST_SECONDS


@routes.add(
    "POST", "/api/instances/{instance_id}/algorithms/{name}", action="instances.query", status=202, answers=Data[JobView],
    refuses=["not-found", "graph-not-running", "graph-unreachable", "lock-busy", "draining", "invalid-payload",
             "idempotency-mismatch"],
    others=AS_THE_SERVER,
)  # fmt: skip
async def run_algorithm(
    request: Request, instance_id: JobNumber, name: Name, act: Acting, here: Here, asked: RunAsked | None = None
) -> Response:
    """Run an algorithm. 202 with the job that runs it; 409 names the job that runs another one on this instance."""
    instance = await running_instance(request, instance_id)
    body = (asked or RunAsked()).model_dump(exclude_none=True)
    checked = await here.proxy.ask("POST", str(instance.address), f"algorithms/{name}/check", secret=instance.secret, body=body)
    if checked.is_refusal:
        return JSONResponse(checked.body, checked.status, media_type=PROBLEM_JSON)
    algorithm, longest = checked.body["algorithm"], timedelta(seconds=body["timeout_seconds"])

    async def do(conn: Conn) -> Answer:
        try:
            made = await enqueue(conn, algorithm_job(instance_id, algorithm, body, holder=act.actor, longest=longest))
        except LockBusy as busy:
            raise await _held(conn, instance_id, busy) from None
        await set_owner(conn, made, act.actor)
        job = shown(await get_job(conn, made.id), act.caller)
        return Answer(202, job, {"Location": f"/api/jobs/{made.id}", "Retry-After": "1"})

    detail = {"instance_id": instance_id, "algorithm": algorithm}
    return await act.run(f"instance/{instance_id}", do, owner=owner_of(instance_id), detail=detail)


async def _held(conn: Conn, instance_id: int, busy: LockBusy) -> Problem:
    """The refusal of a second run: it names the job that holds the lock, its algorithm and who started it."""
    holder: dict[str, Any] = {"job_id": busy.holder, "algorithm": None, "holder": None}
    sentence = f"an algorithm ran on graph instance {instance_id} and has just ended; try again"
    with suppress(NotFound):  # the job was removed in the meantime
        payload: Any = (await get_job(conn, JobId(busy.holder or 0))).payload
        holder |= {"algorithm": payload["algorithm"], "holder": payload["holder"]}
        sentence = (
            f"job {busy.holder} ({holder['algorithm']}) of {holder['holder']} runs on graph instance {instance_id}; "
            f"wait until it has ended, or cancel it: POST /api/jobs/{busy.holder}/cancel"
        )
    return Problem(
        "lock-busy",
        sentence,
        headers={"Retry-After": "5"},
        lock_key=busy.key,
        holder_job_id=busy.holder,
        holder=holder,
    )
