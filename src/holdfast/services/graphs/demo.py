"""The graph demo: from the snapshot of the export demo to a running graph, a Cypher result, PageRank, and its removal.

Called by: `holdfast up`, after the export demo. A worker in this process runs the jobs of graphs; the graph server is a real
process of the local runtime. At the end the instance and its process are gone, which is checked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import psycopg
from rich.console import Console
from rich.table import Table

from holdfast.database.pool import connect
from holdfast.extras import lazily
from holdfast.jobs.enqueue import enqueue
from holdfast.jobs.views.read import get_job
from holdfast.services.exports import offers
from holdfast.services.exports.offers import SnapshotHead
from holdfast.services.graphs.instances import delete, rows
from holdfast.services.graphs.instances.create import NewInstance, create
from holdfast.services.graphs.instances.jobs import algorithm_job
from holdfast.services.graphs.instances.rows import Instance
from holdfast.services.graphs.kinds import KINDS
from holdfast.services.graphs.settings import GraphsSettings
from holdfast.services.graphs.setup import Graphs, graphs_from
from holdfast.services.graphs.states import InstanceState
from holdfast.settings import Settings
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = lazily("httpx2")

OWNER: Final = "demo"
LONGEST: Final = 240.0  # seconds
CYPHER: Final = (
    "MATCH (c:Customer)-[:OWNS]->(a:Account)-[p:PAID]->(b:Account) "
    "RETURN c.name AS customer, count(*) AS payments, sum(p.cents) / 100 AS amount ORDER BY amount DESC, customer LIMIT 5"
)


async def play(url: str, console: Console, given: Settings) -> bool:
    """Run the demo on this database; whether its result is correct."""
    assert isinstance(given, GraphsSettings)
    await asyncio.to_thread(import_module, "httpx2")  # in the event loop, the import would be reported as a blocked loop
    conn = await connect(url)
    try:
        snapshot = await offers.newest_ready(conn, OWNER)
        if snapshot is None:
            console.print("\n  The graph demo is skipped, because there is no snapshot of the export demo.", style="dim")
            return True
        data = given.data_dir.absolute()
        here = graphs_from(
            given.model_copy(update={"graphs_dir": data.with_name(f"{data.name}-graphs"), "graph_runtime": "local"})
        )
        async with _sharing(here), _working(url):
            return await _play(conn, here, snapshot, console)
    finally:
        await conn.close()


async def _play(conn: psycopg.AsyncConnection[Any], here: Graphs, snapshot: SnapshotHead, console: Console) -> bool:
    console.print(f"\n[bold]Graph demo[/]: a graph database is loaded from snapshot {snapshot.id}")
    began = time.monotonic()
    new = NewInstance(
        name="demo",
        engine=here.engine,
        default_memory_mb=here.default_memory_mb,
        longest_start=timedelta(seconds=LONGEST),
        snapshot_id=snapshot.id,
        ttl="PT1H",
    )
    async with conn.transaction():
        instance_id = await create(conn, new, owner=OWNER)
    try:
        instance = await _until_settled(conn, instance_id)
        if instance.status is not InstanceState.RUNNING:
            console.print(f"  [bold red]WRONG[/]: the graph is {instance.status}: {instance.error_code}: {instance.error}")
            return False
        rows_of = (instance.progress or {}).get("rows") or {}
        seconds = f"{time.monotonic() - began:.1f} s"
        console.print(
            f"  running after {seconds}: {rows_of.get('nodes', 0):,} nodes and {rows_of.get('edges', 0):,} edges", style="green"
        )
        is_right = rows_of == {"nodes": 270_000, "edges": 350_000} and await _query(conn, instance, console)
    finally:
        is_gone = await _remove(conn, here, instance_id)
    gone = "the graph server and the instance are removed" if is_gone else "[bold red]WRONG[/]: it was not removed"
    console.print(f"  {gone}", style="green" if is_gone else "")
    return is_right and is_gone


async def _query(conn: psycopg.AsyncConnection[Any], instance: Instance, console: Console) -> bool:
    """Show a Cypher result and the ten accounts with the highest PageRank, which a job computes."""
    headers = {"Authorization": f"Bearer {instance.secret}"}
    async with httpx2.AsyncClient(base_url=instance.address or "", headers=headers, timeout=LONGEST, trust_env=False) as http:
        answer = (await http.post("/query", json={"query": CYPHER})).raise_for_status().json()
        console.print(f"  {CYPHER}", style="dim", markup=False)
        console.print(_table(answer["columns"], answer["rows"]))
        job_id = await _rank(conn, instance.id)
        result = await http.get(f"/algorithms/runs/{job_id}/result", params={"order": "desc", "limit": 10})
        ranked = result.raise_for_status().json()
        console.print("  PageRank of the accounts, top ten:")
        console.print(_table(ranked["columns"], ranked["rows"]))
    return len(answer["rows"]) == 5 and len(ranked["rows"]) == 10


async def _rank(conn: psycopg.AsyncConnection[Any], instance_id: int) -> int:
    """The job that has computed the PageRank."""
    asked = {"node_labels": ["Account"], "edge_types": ["PAID"]}
    new = algorithm_job(instance_id, "pagerank", asked, holder=OWNER, longest=timedelta(seconds=LONGEST))
    made = await enqueue(conn, new)
    async with asyncio.timeout(LONGEST):
        while (await get_job(conn, made.id)).finished_at is None:
            await asyncio.sleep(0.05)
    return made.id


def _table(columns: list[str], found: list[list[Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column)
    for row in found:
        table.add_row(*(f"{value:.6f}" if isinstance(value, float) else str(value) for value in row))
    return table


async def _until_settled(conn: psycopg.AsyncConnection[Any], instance_id: int) -> Instance:
    async with asyncio.timeout(LONGEST):
        while True:
            found = await rows.get(conn, instance_id)
            if found.status in (InstanceState.RUNNING, InstanceState.FAILED):
                return found
            await asyncio.sleep(0.05)


async def _remove(conn: psycopg.AsyncConnection[Any], here: Graphs, instance_id: int) -> bool:
    """Delete the instance; whether its row and its process are gone."""
    async with conn.transaction():
        await delete.begin(conn, instance_id, actor=OWNER)
    async with asyncio.timeout(LONGEST):
        while await rows.find(conn, instance_id) is not None:
            await asyncio.sleep(0.05)
    return await here.runtime.look(instance_id) is None


@asynccontextmanager
async def _sharing(here: Graphs) -> AsyncIterator[None]:
    here.share()
    try:
        yield
    finally:
        await here.close()


@asynccontextmanager
async def _working(url: str) -> AsyncIterator[None]:
    """A worker for the jobs of graphs, in this event loop."""
    beat = timedelta(seconds=1)
    worker = Worker(url, KINDS, WorkerOptions(concurrency=2, beat=beat, poll=beat / 5, grace=beat, name="graph demo"))
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await working
