"""Workers of document 002: a claim whose answer was lost, their effects in the ledger, and the longest time they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from proof.proxy import relaying

from export_factories import UnloadingEngine, mapping, refuse
from factories import rows, state_of, value
from holdfast.engines.port import Phase
from holdfast.jobs.effects import clean
from holdfast.jobs.rescue import rescue
from holdfast.schedule.context import Held, Pass
from holdfast.schedule.registry import Loop
from holdfast.services.exports import kinds, reconcile
from holdfast.services.exports.setup import Exports
from holdfast.worker.kinds import cleaners
from loop_factories import LONG, taken, until

Client = httpx2.AsyncClient
ENGINE = UnloadingEngine  # of the fixtures `engine` and `here`
assert kinds.KINDS  # importing them registers the cleaners


@pytest.fixture
async def worker(as_role: Any) -> Client:
    client: Client = await as_role("worker")
    return client


async def make(ops: Client) -> int:
    made = (await ops.post("/api/mappings", json=mapping())).json()["data"]
    answer = await ops.post("/api/snapshots", json={"mapping_id": made["id"]})
    return int(answer.json()["data"]["snapshot"]["id"])


async def claimed(worker: Client, name: str = "pod-1", limit: int = 10) -> list[dict[str, Any]]:
    answer = await worker.post("/export-jobs/claim", json={"worker_id": name, "limit": limit})
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


async def update(worker: Client, one: dict[str, Any], **said: Any) -> httpx2.Response:
    return await worker.patch(f"/export-jobs/{one['id']}", json=said, headers={"If-Match": f'"{one["attempt_id"]}"'})


async def submit(worker: Client, one: dict[str, Any], query: str) -> None:
    said = {"status": "submitted", "starburst_query_id": query, "next_uri": f"http://engine/{query}/1"}
    answer = await update(worker, one, **said)
    assert answer.status_code == 200, answer.text


def write(one: dict[str, Any]) -> None:
    """What a worker has written at the place of its claim."""
    Path(one["gcs_path"]).mkdir(parents=True)
    (Path(one["gcs_path"]) / "part-0.parquet").write_text("rows")


def is_there(one: dict[str, Any]) -> bool:
    return Path(one["gcs_path"]).exists()


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    """The app behind a real socket; its port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None))
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def cut_off(app: Any, worker: Client, word: str) -> AsyncIterator[Client]:
    """A client whose line is cut once, after the server has acted and before its answer is back."""
    async with served(app) as port, relaying(f"http://127.0.0.1:{port}") as relay:
        relay.cut(word, "after")
        async with Client(base_url=relay.url, headers=dict(worker.headers), trust_env=False, timeout=60) as client:
            yield client


async def test_a_claim_whose_answer_was_lost_is_given_again(app: Any, ops: Client, worker: Client, conn: Any) -> None:
    """E-04: the jobs would be held by no process for ten minutes."""
    await make(ops)
    async with cut_off(app, worker, "/export-jobs/claim") as client:
        with pytest.raises(httpx2.TransportError):
            await claimed(client)
        lost = await rows(conn, "SELECT id, attempt_id::text FROM holdfast.jobs ORDER BY id")
        assert all(attempt for _, attempt in lost), "the server has acted"

        again = await claimed(client)

    assert [one["id"] for one in again] == [job for job, _ in lost]
    assert not {one["attempt_id"] for one in again} & {attempt for _, attempt in lost}
    assert (await update(worker, again[0], status="failed", error_message="test")).status_code == 200
    assert await rows(conn, "SELECT DISTINCT errors, crashes FROM holdfast.jobs WHERE state = 'running'") == [(0, 0)]


async def test_polls_whose_answer_was_lost_are_given_again(app: Any, ops: Client, worker: Client, conn: Any) -> None:
    """E-04: engines drop a query that nobody asks about for five minutes."""
    await make(ops)
    for one in await claimed(worker):
        await submit(worker, one, f"q{one['id']}")
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp()")
    place = "/export-jobs/pollable?worker_id=pod-1"
    async with cut_off(app, worker, "/export-jobs/pollable") as client:
        with pytest.raises(httpx2.TransportError):
            await client.get(place)
        assert await value(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'running'") == 3

        again = (await client.get(place)).json()["data"]

    assert [one["starburst_query_id"] for one in again] == [f"q{one['id']}" for one in again]
    assert len(again) == 3
    assert (await update(worker, again[0], next_uri="http://engine/2")).status_code == 200


async def test_polls_without_a_worker_id_come_back_after_two_minutes(ops: Client, worker: Client, conn: Any) -> None:
    """E-04: the worker of the document sends none, and two of them must not take polls from each other."""
    await make(ops)
    (one,) = await claimed(worker, limit=1)
    await submit(worker, one, "q1")
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE state = 'submitted'")
    (poll,) = (await worker.get("/export-jobs/pollable")).json()["data"]

    assert (await worker.get("/export-jobs/pollable")).json()["data"] == []
    assert poll["lease_seconds"] == 120
    left = "SELECT lease_until < clock_timestamp() + interval '121 s' FROM holdfast.workers WHERE stopped_at IS NULL"
    assert await value(conn, left)


async def lose(conn: Any, job_id: int) -> tuple[str, int]:
    """No update comes until the lease of the claim is over; the state and the crashes of the job then."""
    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'")
    assert await rescue(conn) == [job_id]
    ((state, crashes),) = await rows(conn, "SELECT state, crashes FROM holdfast.jobs WHERE id = %s", job_id)
    return state, crashes


async def test_polls_without_an_update_are_no_crashes_of_the_export(ops: Client, worker: Client, conn: Any) -> None:
    """K-38: the worker of the document logs a poll that failed and sends nothing; the query runs on."""
    await make(ops)
    (one,) = await claimed(worker, limit=1)
    await submit(worker, one, "q1")

    for _ in range(5):
        await conn.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE id = %s", [one["id"]])
        (poll,) = (await worker.get("/export-jobs/pollable")).json()["data"]
        assert await lose(conn, poll["id"]) == ("submitted", 0)


async def test_poll_with_an_update_may_not_take_longer_than_the_export(ops: Client, worker: Client, conn: Any) -> None:
    """Each update renews the lease, so only the longest time of the job ends a poll that never finds the query ended."""
    await make(ops)
    (one,) = await claimed(worker, limit=1)
    await submit(worker, one, "q1")
    await conn.execute("UPDATE holdfast.jobs SET next_poll_at = clock_timestamp() WHERE id = %s", [one["id"]])
    (poll,) = (await worker.get("/export-jobs/pollable")).json()["data"]

    await update(worker, poll, message="still there")

    assert await value(conn, "SELECT deadline_at = begun_at + max_runtime FROM holdfast.jobs WHERE id = %s", one["id"])


async def test_first_claim_without_an_update_is_no_crash_and_later_ones_are(ops: Client, worker: Client, conn: Any) -> None:
    """The response may have been lost; but an export that kills each worker that gets it comes to an end."""
    await make(ops)
    job_id = (await claimed(worker, "pod-0", limit=1))[0]["id"]
    await conn.execute("UPDATE holdfast.jobs SET state = 'cancelled', finished_at = now() WHERE state = 'pending'")

    seen = [await lose(conn, job_id)]
    for pod in range(1, 4):
        await conn.execute("UPDATE holdfast.jobs SET run_after = NULL WHERE id = %s", [job_id])
        assert [again["id"] for again in await claimed(worker, f"pod-{pod}")] == [job_id]
        seen.append(await lose(conn, job_id))

    assert seen == [("pending", 0), ("pending", 1), ("pending", 2), ("failed", 3)]


async def test_claim_that_was_updated_has_begun(ops: Client, worker: Client, conn: Any) -> None:
    await make(ops)
    (one,) = await claimed(worker, limit=1)
    limit = "SELECT deadline_at = begun_at + max_runtime FROM holdfast.jobs WHERE id = %s"
    assert await value(conn, limit, one["id"]) is None

    await update(worker, one, progress=0.1)

    assert await value(conn, limit, one["id"])
    assert await lose(conn, one["id"]) == ("pending", 1)


async def test_of_two_processes_with_one_worker_id_only_the_last_claimant_holds_the_job(ops: Client, worker: Client) -> None:
    """E-04: given again means a new attempt, so the fence tells them apart."""
    await make(ops)
    first = await claimed(worker)
    second = await claimed(worker)

    late = await update(worker, first[0], status="failed", error_message="I was slow")

    assert [one["id"] for one in first] == [one["id"] for one in second]
    assert (late.status_code, late.json()["code"]) == (412, "STALE_ATTEMPT")
    assert (await update(worker, second[0], progress=0.1)).status_code == 200


async def test_a_claim_that_was_updated_or_is_old_or_of_another_is_not_given_again(
    ops: Client, worker: Client, as_role: Any, conn: Any
) -> None:
    await make(ops)
    first, second, third = [(await claimed(worker, name, limit=1))[0] for name in ("a", "b", "c")]
    await update(worker, first, progress=0.1)
    await conn.execute("UPDATE holdfast.workers SET started_at = started_at - interval '121 seconds' WHERE name = 'b'")
    stranger = await as_role("worker", "another-team")

    assert await claimed(worker, "a") == [], "an update has shown that the answer came"
    assert await claimed(worker, "b") == [], "a client that lost its answer asks again sooner"
    assert await claimed(stranger, "c") == [], "the token is another's"
    for one in (first, second, third):
        assert (await update(worker, one, progress=0.2)).status_code == 200


async def test_a_claim_that_comes_while_the_first_is_under_way_waits_for_it(
    ops: Client, worker: Client, conn: Any, connect: Any
) -> None:
    """E-04: a client that gave up waiting asks again before the server is done."""
    await make(ops)
    slow = await connect()
    async with slow.transaction():
        await slow.execute("SELECT FROM holdfast.jobs ORDER BY id LIMIT 1 FOR UPDATE")
        await slow.execute("LOCK TABLE holdfast.workers IN SHARE MODE")  # registering waits, with the claim written
        first = asyncio.create_task(claimed(worker))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        await until(lambda: value(conn, waiting))
        second = asyncio.create_task(claimed(worker))
        await until(lambda: value(conn, f"SELECT ({waiting}) = 2"))

    lost, again = await first, await second
    assert {one["id"] for one in lost} <= {one["id"] for one in again}
    assert await value(conn, "SELECT count(DISTINCT worker_id) FROM holdfast.jobs WHERE state = 'running'") == 1


async def test_a_cancelled_export_is_stopped_at_the_engine_and_its_files_are_removed(
    ops: Client, worker: Client, conn: Any, engine: UnloadingEngine, here: Exports
) -> None:
    """E-07: by the ledger, whoever submitted the query and wrote the files."""
    snapshot_id = await make(ops)
    submitted, held, _ = await claimed(worker)
    for one in (submitted, held):
        write(one)
    engine.queries["q1"] = {"sql": "", "phase": Phase.RUNNING, "role": None}
    await submit(worker, submitted, "q1")

    await ops.post(f"/api/snapshots/{snapshot_id}/cancel", json={"reason": "test"})
    await update(worker, held, status="failed", error_message="it was cancelled")
    assert await clean(conn, cleaners()) >= 3

    assert engine.cancelled == ["q1"]
    assert [is_there(one) for one in (submitted, held)] == [False, False]


async def test_what_a_worker_that_vanished_has_written_is_removed_when_its_job_completes_elsewhere(
    ops: Client, worker: Client, conn: Any, here: Exports
) -> None:
    """E-07"""
    await make(ops)
    (dead,) = await claimed(worker, limit=1)
    write(dead)
    await conn.execute("UPDATE holdfast.workers SET lease_until = clock_timestamp() - interval '1 s'")
    await rescue(conn)
    (alive,) = [one for one in await claimed(worker, "pod-2") if one["id"] == dead["id"]]
    write(alive)
    done = await update(worker, alive, status="completed", row_count=1, size_bytes=1, files=[{"path": "part-0.parquet"}])
    assert done.status_code == 200, done.text

    await clean(conn, cleaners())

    assert [is_there(one) for one in (dead, alive)] == [False, True]


async def test_an_export_that_a_worker_never_submits_fails_with_the_longest_time(
    ops: Client, admin: Client, worker: Client, conn: Any, connect: Any, database: str, here: Exports
) -> None:
    """X-03: once, in the words of the document, and not as a crash that is run again. E-23: a broken row stops no other."""
    await admin.put("/api/config/export.max_duration_seconds", json={"value": 120, "reason": "test"})
    await make(ops)
    broken, long, short = sorted(await claimed(worker), key=itemgetter("id"))
    made_long = "UPDATE holdfast.jobs SET claimed_at = claimed_at - interval '121 seconds' WHERE id = ANY (%s)"
    await conn.execute(made_long, [[broken["id"], long["id"]]])
    await refuse(conn, "jobs", broken["id"])

    @asynccontextmanager
    async def borrow() -> Any:
        yield await connect()

    term = await taken(conn, Loop(reconcile.NAME, reconcile.reconcile, every=reconcile.EVERY, first_run="at_once"))
    acted = await reconcile.fail_overlong(Pass(term, Held(LONG), borrow, database))

    assert (acted.done, acted.failed) == (1, [broken["id"]])
    assert await state_of(conn, broken["id"]) == "running"
    found = await rows(conn, "SELECT state, error, crashes FROM holdfast.jobs WHERE id = %s", long["id"])
    assert found == [("failed", "Export job exceeded maximum duration (120s)", 0)]
    assert await state_of(conn, short["id"]) == "running"
    assert (await update(worker, long, progress=0.5)).status_code == 412
