"""Algorithms as jobs: submitted, polled, cancelled, one at a time for each instance, on a real graph server."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

import programs
from factories import holders_of, moves_of, state_of, value
from graph_factories import many_running, snapshot_of, worker
from graph_servers import SECRET, TOKEN, Served, graph_server, ring
from holdfast.jobs.enqueue import enqueue
from holdfast.services.graphs.instances import rows
from holdfast.services.graphs.instances.algorithm import progress_message, why_not
from holdfast.services.graphs.instances.jobs import algorithm_job
from holdfast.services.graphs.runtimes.interface import Reached
from holdfast.services.graphs.setup import Graphs
from workers import ended, until

pytest.importorskip("ladybug")
pytestmark = pytest.mark.processes
Client = httpx2.AsyncClient
LONG = {"parameters": {"samples": 100_000}}  # betweenness: a search from each node, level by level
MINUTE = timedelta(minutes=1)
EVERYTHING = "HOLDFAST_TEST_EVERYTHING" in os.environ
POINTS = ("graphs.after_run", "graphs.before_run")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One real graph server for all tests of this module; each has an instance of its own that it belongs to."""
    folder = tmp_path_factory.mktemp("ring")
    with graph_server(ring(folder / "files", 2000, more=3), folder / "server") as served:
        assert served.until_loaded()["phase"] == "ready", served.log()
        yield served


class OneServer:
    """A runtime that knows the shared graph server."""

    name = "one"

    def __init__(self, graph: Served) -> None:
        self._server = graph

    async def reach(self, instance_id: int, start_token: str) -> Reached | None:
        return Reached(self._server.url, SECRET) if start_token == TOKEN else None

    async def close(self) -> None:
        pass


@pytest.fixture
async def runtime(graph: Served) -> OneServer:
    for run in graph.http.get("/algorithms/runs").json()["runs"]:
        graph.http.delete(f"/algorithms/runs/{run['id']}")
    return OneServer(graph)


@pytest.fixture
async def running(conn: Any, mapping_id: int, graph: Served) -> int:
    """A running instance of token:analyst whose graph server is the shared one."""
    await many_running(conn, await snapshot_of(conn, mapping_id), 1)
    instance_id = await value(
        conn,
        "UPDATE holdfast.graph_instances SET owner = 'token:analyst', address = %s, start_token = %s RETURNING id",
        graph.url,
        TOKEN,
    )
    await conn.execute("INSERT INTO holdfast.graph_secrets VALUES (%s, %s)", [instance_id, SECRET])
    return int(instance_id)


def runs_of(graph: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = graph.http.get("/algorithms/runs").json()["runs"]
    return found


async def until_computing(graph: Served, job_id: int) -> None:
    async def computes() -> bool:
        run = await asyncio.to_thread(lambda: graph.http.get(f"/algorithms/runs/{job_id}").json())
        return run.get("step") == "computing"

    await until(computes)


async def until_it_counts(client: Client, job_id: int) -> dict[str, Any]:
    """The job once its progress is more than the beginning of a step."""
    found: dict[str, Any] = {}

    async def counts() -> bool:
        found.update((await client.get(f"/api/jobs/{job_id}")).json()["data"])
        return float(found["progress"] or 0) > 0.3

    await until(counts)
    return found


@pytest.mark.more
async def test_a_run_is_a_job_and_its_rows_are_read_by_the_id_of_the_job(
    analyst: Client, conn: Any, database: str, running: int
) -> None:
    """Submitted, polled, completed; the job shows what ran, and belongs to the user who started it."""
    async with worker(database):
        made = await analyst.post(f"/api/instances/{running}/algorithms/Degree", json={"parameters": {"direction": "out"}})
        assert made.status_code == 202, made.text
        job = made.json()["data"]
        done = await ended(conn, job["id"])

    assert (made.headers["location"], job["kind"], job["owner"]) == (
        f"/api/jobs/{job['id']}",
        "graphs.algorithm",
        "token:analyst",
    )
    assert done.state == "completed", done.error
    assert {name: done.result[name] for name in ("algorithm", "parameters", "nodes", "edges", "rows", "columns")} == {
        "algorithm": "degree",
        "parameters": {"direction": "out"},
        "nodes": 2000,
        "edges": 6000,
        "rows": 2000,
        "columns": ["label", "key", "degree"],
    }
    assert "submit" in await moves_of(conn, job["id"])
    path = f"/api/instances/{running}/graph/algorithms/runs/{job['id']}/result"
    assert (await analyst.get(path, params={"limit": "2"})).json()["rows"] == [["N", 0, 3.0], ["N", 1, 3.0]]
    assert await holders_of(conn, f"graph-algorithm:{running}") == [], "the lock is free"


@pytest.mark.more
async def test_one_at_a_time_queries_go_on_and_a_cancel_stops_the_run(
    analyst: Client, ops: Client, conn: Any, database: str, graph: Served, running: int
) -> None:
    """409 names the holder; a query is answered meanwhile; the job shows how far it is; a cancelled job leaves no run."""
    path = f"/api/instances/{running}"
    async with worker(database):
        first = (await analyst.post(f"{path}/algorithms/betweenness", json=LONG)).json()["data"]
        await until_computing(graph, first["id"])

        second = await ops.post(f"{path}/algorithms/wcc", json={})
        count = await analyst.post(f"{path}/graph/query", json={"query": "MATCH (n:N) RETURN count(*)"})
        still = graph.http.get(f"/algorithms/runs/{first['id']}").json()
        waiting = await until_it_counts(analyst, first["id"])
        cancelled = await analyst.post(f"/api/jobs/{first['id']}/cancel", json={})
        third = await analyst.post(f"{path}/algorithms/wcc", json={})
        done = await ended(conn, third.json()["data"]["id"])

    assert second.status_code == 409, second.text
    assert second.json()["holder"] == {"job_id": first["id"], "algorithm": "betweenness", "holder": "token:analyst"}
    assert f"job {first['id']} (betweenness) of token:analyst runs on graph instance {running}" in second.json()["detail"]
    assert (count.json()["rows"], still["state"]) == ([[2000]], "running"), "the query did not wait for the run"
    assert waiting["state"] in ("submitted", "running")
    assert 0.3 < waiting["progress"] < 1
    assert re.match(r"betweenness: computing, [\d,]+ of 2,000 sources \(2,000 nodes, 6,000 edges\)", waiting["message"])
    assert cancelled.status_code == 202
    assert done.state == "completed", done.error
    assert await state_of(conn, first["id"]) == "cancelled"
    assert graph.http.get(f"/algorithms/runs/{first['id']}").json()["state"] == "cancelled"


@pytest.mark.more
@pytest.mark.parametrize("point", POINTS if EVERYTHING else POINTS[:1])
async def test_the_successor_of_a_killed_worker_finds_the_run_or_starts_it(
    analyst: Client, conn: Any, database: str, graph: Served, running: int, tmp_path: Path, point: str
) -> None:
    """A worker gets SIGKILL around the submit: in the end there is one run, with the tag of the first attempt."""
    made = await analyst.post(f"/api/instances/{running}/algorithms/k-core", json={})
    job_id = made.json()["data"]["id"]

    async with process(database, tmp_path, HOLDFAST_CRASH_AT=point) as log:
        done = await ended(conn, job_id)

    assert '"executor_died"' in log.read_text(), "the point was never reached"
    assert done.state == "completed", done.error
    assert done.attempt_no >= 2
    (effect,) = [row async for row in await conn.execute("SELECT tag, state FROM holdfast.effects WHERE kind = 'graphs.run'")]
    (run,) = [one for one in runs_of(graph) if one["id"] == job_id]
    assert (run["tag"], run["state"], effect) == (effect[0], "completed", (effect[0], "kept"))


@asynccontextmanager
async def process(database: str, folder: Path, **environment: str) -> AsyncIterator[Path]:
    """`holdfast worker run`, in a process group of its own; its log."""
    own = {"HOLDFAST_POLL_SECONDS": "0.2", "HOLDFAST_BEAT_SECONDS": "1", "HOLDFAST_LOG_FORMAT": "json"}
    own |= {"HOLDFAST_GRAPHS_DIR": str(folder / "graphs"), **environment}
    log = folder / "worker.log"
    with log.open("ab") as said:
        started = programs.start(
            "worker", "run", "--dsn", database, env=os.environ | own, folder=folder, out=said, err=said, session=True
        )
    try:
        yield log
    finally:
        started.kill_group()


async def test_a_wrong_request_is_refused_in_the_words_of_the_graph_server(
    analyst: Client, conn: Any, running: int, viewer: Client
) -> None:
    """A wrong request makes no job."""
    path = f"/api/instances/{running}/algorithms"
    wrong = [
        (await analyst.post(f"{path}/nothing", json={}), 404, "there are: pagerank"),
        (await analyst.post(f"{path}/pagerank", json={"node_labels": ["Nope"]}), 400, "there are: N"),
        (await analyst.post(f"{path}/pagerank", json={"parameters": {"damping": 2}}), 400, "from 0 to 1"),
        (await analyst.post(f"{path}/pagerank", json={"extra": 1}), 422, "extra"),
        (await analyst.post(f"{path}/pagerank", json={"timeout_seconds": 1e9}), 422, "1800"),
        (await viewer.post(f"{path}/pagerank", json={}), 403, "viewer"),
        (await analyst.post(f"/api/instances/{running}/graph/algorithms/pagerank", json={}), 405, ""),
        (await analyst.delete(f"/api/instances/{running}/graph/algorithms/runs/1"), 405, ""),
    ]

    assert [answer.status_code for answer, *_ in wrong] == [status for _, status, _ in wrong]
    assert [named for answer, _, named in wrong if named not in answer.text] == []
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE kind = 'graphs.algorithm'") == 0


@pytest.mark.more
async def test_a_run_that_fails_fails_its_job_without_a_retry(conn: Any, database: str, here: Graphs, running: int) -> None:
    """ALGORITHM_TIMEOUT of the graph server is the error of the job."""
    asked = {**LONG, "timeout_seconds": 0.3}
    made = await enqueue(conn, algorithm_job(running, "betweenness", asked, holder="ada", longest=MINUTE))

    async with worker(database):
        done = await ended(conn, made.id)

    assert (done.state, done.error) == ("failed", "ALGORITHM_TIMEOUT: The run took longer than 0.3 s.")
    assert done.errors == 1


@pytest.mark.more
async def test_a_submit_that_arrives_after_its_stop_starts_nothing(graph: Served, runtime: Any) -> None:
    """The tag of a job that has ended is stopped: a request of its attempt that was delayed on the way is refused."""
    stopped = graph.http.delete("/algorithms/runs/77", params={"tag": "late"})
    late = graph.http.post("/algorithms/wcc", json={"job_id": 77, "tag": "late"})
    other = graph.http.post("/algorithms/wcc", json={"job_id": 77, "tag": "next"})
    again = graph.http.post("/algorithms/wcc", json={"job_id": 77, "tag": "next"})

    assert (stopped.status_code, late.status_code, late.json()["code"]) == (404, 409, "RUN_STOPPED")
    assert (other.status_code, again.status_code) == (202, 202), "the same tag is the same run, and no conflict"
    assert graph.until_ended(77)["tag"] == "next"
    assert graph.http.delete("/algorithms/runs/77", params={"tag": "late"}).status_code == 404, "another attempt's run"


async def test_a_run_keeps_its_instance_active(conn: Any, database: str, here: Graphs, graph: Served, running: int) -> None:
    """The inactivity timeout does not delete an instance while an algorithm runs on it."""
    await conn.execute("UPDATE holdfast.graph_instances SET last_activity_at = now() - interval '1 hour'")
    made = await enqueue(conn, algorithm_job(running, "betweenness", LONG, holder="ada", longest=MINUTE))

    async with worker(database):
        await until_computing(graph, made.id)

        async def is_active() -> bool:
            return bool(
                await value(conn, "SELECT last_activity_at > now() - interval '1 minute' FROM holdfast.graph_instances")
            )

        await until(is_active)
        await conn.execute("UPDATE holdfast.graph_instances SET state = 'stopping'")
        done = await ended(conn, made.id)

        async def is_stopped() -> bool:
            return await asyncio.to_thread(lambda: graph.http.get("/lock").json()["locked"]) is False

        await until(is_stopped)

    assert (done.state, done.error) == ("cancelled", "the graph instance was deleted")


async def test_what_stops_an_algorithm(conn: Any, running: int) -> None:
    """Each state of an instance, and a start that is not the one which has the run."""
    instance = await rows.get(conn, running)

    async def said(state: str, submitted_to: str | None = None) -> str:
        fields = {"failed": ", error_code = 'OOM_KILLED', error = 'too large'", "suspended": ", suspended_at = now()"}
        async with conn.transaction(force_rollback=True):
            await conn.execute(f"UPDATE holdfast.graph_instances SET state = '{state}'{fields.get(state, '')}")
            return repr(why_not(await rows.get(conn, running), submitted_to))

    assert why_not(instance, None) is None
    assert why_not(instance, instance.start_token) is None
    assert "Retry" in repr(why_not(instance, "00000000-0000-4000-8000-000000000002"))
    assert "deleted" in repr(why_not(None, None))
    assert [(await said(state)).partition("(")[0] for state in ("stopping", "suspended", "failed", "starting")] == [
        "Cancel",
        "Cancel",
        "Fail",
        "Snooze",
    ]
    assert "OOM_KILLED: too large" in await said("failed")
    assert progress_message({"algorithm": "wcc", "step": "computing", "nodes": 2000, "edges": None}) == (
        "wcc: computing (2,000 nodes)"
    ), "a graph server of an older image reports nothing more"


async def test_tokens_of_one_tenant_cannot_run_or_stop_an_algorithm_of_another(
    analyst: Client, as_role: Any, conn: Any, running: int
) -> None:
    """Another analyst gets 403 and no job; nor can it cancel one."""
    other = await as_role("analyst", "eve")
    made = (await analyst.post(f"/api/instances/{running}/algorithms/wcc", json={})).json()["data"]

    answers = [
        await other.post(f"/api/instances/{running}/algorithms/wcc", json={}),
        await other.get(f"/api/instances/{running}/graph/algorithms/runs"),
        await other.post(f"/api/jobs/{made['id']}/cancel", json={"reason": "mine"}),
    ]

    assert [answer.status_code for answer in answers] == [403, 403, 403]
    assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE kind = 'graphs.algorithm'") == 1
