"""The connection breaks during COMMIT: the error is the same in both cases, and a lookup shows whether it was committed.

A small proxy stands between the client and Postgres and cuts the line at the COMMIT, before or after it was passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import psycopg
import pytest
from sqlalchemy.engine import make_url

from factories import add, end, hold, lose, moves_of, poll, replace, silence, state_of, submit
from holdfast.errors import ClaimLost
from holdfast.jobs.cancel import cancel
from holdfast.jobs.finish import finish, resolve_unknown
from holdfast.jobs.model import Claim, NewJob
from holdfast.jobs.outcome import COMPLETED, Done, Fail, Retry, decide
from holdfast.jobs.recover import recover
from holdfast.jobs.rescue import rescue_worker


@asynccontextmanager
async def cut_at_commit(database: str, when: Literal["before", "after"]) -> AsyncIterator[str]:
    """The address of a proxy that cuts the line before COMMIT reaches the server, or before its answer comes back."""
    url = make_url(database)
    tasks: list[asyncio.Task[None]] = []

    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(url.host, url.port)
        committing = asyncio.Event()

        async def forward() -> None:
            while data := await client.read(65536):
                if b"COMMIT" in data:
                    committing.set()
                    if when == "before":
                        break
                to_server.write(data)
                await to_server.drain()
            if when == "before":
                to_server.close()

        async def backward() -> None:
            while data := await server.read(65536):
                if committing.is_set():
                    break  # the commit is answered, so it is done; the client will never know
                to_client.write(data)
                await to_client.drain()
            to_client.close()
            to_server.close()

        tasks.extend([asyncio.create_task(forward()), asyncio.create_task(backward())])

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    try:
        yield url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    finally:
        proxy.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _finish_over(address: str, claim: Claim, ended_with: object) -> None:
    """Try to end an attempt over a line that is going to be cut."""
    over = await psycopg.AsyncConnection.connect(address, autocommit=True, sslmode="disable", gssencmode="disable")
    with pytest.raises(psycopg.OperationalError):
        await finish(over, claim, decide(claim, ended_with))
    await over.close()


@pytest.mark.parametrize("ended_with", [None, Done(then=[NewJob("next")]), Fail("no"), Retry("later")])
async def test_committed_finish_is_found_by_its_attempt(database: str, conn: Any, ended_with: object) -> None:
    """P13."""
    claim = await hold(conn)
    async with cut_at_commit(database, "after") as address:
        await _finish_over(address, claim, ended_with)

    assert await resolve_unknown(conn, claim) is True
    assert await state_of(conn, claim.id) != "running"


@pytest.mark.parametrize("ended_with", [None, Done(then=[NewJob("next")]), Fail("no"), Retry("later")])
async def test_uncommitted_finish_leaves_the_job_to_its_attempt(database: str, conn: Any, ended_with: object) -> None:
    claim = await hold(conn)
    async with cut_at_commit(database, "before") as address:
        await _finish_over(address, claim, ended_with)

    assert await resolve_unknown(conn, claim) is False
    await end(conn, claim, ended_with)
    assert len(await moves_of(conn, claim.id)) == 1, "it ended once"


async def test_backend_terminated_before_the_commit_wrote_nothing(connect: Any) -> None:
    conn, doomed = await connect(), await connect()
    claim = await hold(conn)

    async def finish_and_die() -> None:
        async with doomed.transaction():
            await finish(doomed, claim, COMPLETED)
            await conn.execute("SELECT pg_terminate_backend(%s)", [doomed.info.backend_pid])

    with pytest.raises(psycopg.OperationalError):
        await finish_and_die()
    assert await resolve_unknown(conn, claim) is False


async def test_backend_terminated_after_the_commit_wrote_the_end(connect: Any) -> None:
    conn, doomed = await connect(), await connect()
    claim = await hold(conn)

    await finish(doomed, claim, COMPLETED)
    await conn.execute("SELECT pg_terminate_backend(%s)", [doomed.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        await doomed.execute("SELECT 1")

    assert await resolve_unknown(conn, claim) is True


async def test_poll_is_resolved_by_its_own_attempt_and_not_by_the_submitting_one(conn: Any) -> None:
    claim = await hold(conn)
    await submit(conn, claim)
    looked = await poll(conn, claim.id)

    assert await resolve_unknown(conn, claim) is True
    assert await resolve_unknown(conn, looked) is False


async def test_unknown_attempt_is_lost(conn: Any) -> None:
    claim = await hold(conn)

    with pytest.raises(ClaimLost):
        await resolve_unknown(conn, claim._replace(attempt_id="00000000-0000-4000-8000-000000000000"))


async def _rescued(conn: Any, claim: Claim) -> None:
    await lose(conn, claim)


async def _replaced(conn: Any, claim: Claim) -> None:
    await replace(conn, claim)


async def _rescued_by_its_keeper(conn: Any, claim: Claim) -> None:
    await rescue_worker(conn, claim.worker_id, cause="oom", error="killed")


async def _recovered(conn: Any, claim: Claim) -> None:
    await silence(conn, claim)
    await recover(conn, claim.id, actor="ada")


async def _cancelled_by_force(conn: Any, claim: Claim) -> None:
    await cancel(conn, claim.id, actor="ada", force=True)


@pytest.mark.parametrize("lose_it", [_rescued, _replaced, _rescued_by_its_keeper, _recovered, _cancelled_by_force])
async def test_attempt_ended_by_another_process_is_lost(conn: Any, lose_it: Any) -> None:
    """Its history has a row of that attempt, too: but it is the row of whoever took the job away."""
    claim = await hold(conn)
    await add(conn)
    await lose_it(conn, claim)

    with pytest.raises(ClaimLost):
        await resolve_unknown(conn, claim)
