"""Rescue by ended database sessions: dead workers are found early, and a worker that reconnects keeps its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from factories import column, hold, make_due, moves_of, rows, state_of, take, value, waits
from holdfast.jobs.model import Claim
from holdfast.jobs.renew import renew_leases
from holdfast.jobs.rescue import rescue_disconnected
from holdfast.jobs.sessions import publish, rescue_ended_sessions

NOW = timedelta(0)
LATER = timedelta(hours=1)
LONG = timedelta(minutes=5)
Connect = Callable[[], Any]


async def present(conn: Any, session: Any) -> Claim:
    """A job held by a worker that this session stands for, and that has just beaten."""
    claim = await hold(conn)
    await publish(session, [claim.worker_id])
    await renew_leases(conn, [claim.worker_id], lease=LONG)
    return claim


async def end_of(conn: Any, session: psycopg.AsyncConnection[Any]) -> None:
    """The session is gone, as after a SIGKILL of its owner."""
    pid = session.info.backend_pid
    await session.close()
    while await value(conn, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid):
        pass


async def test_jobs_of_an_ended_session_are_rescued_before_the_lease_ends(conn: Any, connect: Connect):
    claim = await present(conn, session := await connect())
    await end_of(conn, session)

    noted, at_once = await rescue_ended_sessions(conn, grace=LATER)
    _, jobs = await rescue_ended_sessions(conn, grace=NOW)

    assert (noted, at_once, jobs) == ([claim.worker_id], [], [claim.id])
    assert await state_of(conn, claim.id) == "pending"
    ((cause,),) = await rows(conn, "SELECT detail ->> 'cause' FROM holdfast.history WHERE job_id = %s", claim.id)
    assert cause == "disconnected"
    assert await value(conn, "SELECT lease_until > clock_timestamp() FROM holdfast.workers WHERE id = %s", claim.worker_id)


async def test_connected_worker_keeps_its_jobs(conn: Any, connect: Connect):
    claim = await present(conn, await connect())

    assert await rescue_ended_sessions(conn, grace=NOW) == ([], [])
    assert await state_of(conn, claim.id) == "running"


async def test_invisible_session_of_another_role_is_not_treated_as_ended(conn: Any, connect: Connect, database: str):
    """Postgres hides from an ordinary role when the sessions of others began."""
    role = f"ordinary_{uuid4().hex}"
    rights = "GRANT USAGE ON SCHEMA holdfast TO {0}; GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO {0}"
    await conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'ordinary'; {rights.format(role)}")
    where = make_conninfo(database, user=role, password="ordinary")
    try:
        async with await psycopg.AsyncConnection.connect(where, autocommit=True) as observer:
            await present(conn, await connect())
            noted, taken = await rescue_ended_sessions(observer, grace=NOW)
    finally:
        await conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    assert (noted, taken) == ([], [])


async def test_worker_that_reconnects_in_time_keeps_its_jobs(conn: Any, connect: Connect):
    """Its line was cut, or somebody ended its session: it is not the worker that died."""
    claim = await present(conn, session := await connect())
    await end_of(conn, session)
    noted, _ = await rescue_ended_sessions(conn, grace=LATER)

    await publish(await connect(), [claim.worker_id])

    assert noted == [claim.worker_id]
    assert await rescue_ended_sessions(conn, grace=NOW) == ([], [])
    assert await state_of(conn, claim.id) == "running"


async def test_rescue_does_not_wait_for_a_reconnecting_worker(conn: Any, connect: Connect):
    """Both take the worker's row: what is decided is decided by whoever has it first."""
    claim = await present(conn, session := await connect())
    await end_of(conn, session)
    await rescue_ended_sessions(conn, grace=LATER)
    back = await connect()

    async with back.transaction():
        await publish(back, [claim.worker_id])
        assert await rescue_disconnected(conn, grace=NOW) == []

    assert await rescue_disconnected(conn, grace=NOW) == []
    assert await state_of(conn, claim.id) == "running"


async def test_falsely_rescued_worker_is_refused_by_the_fence(conn: Any, connect: Connect):
    claim = await present(conn, session := await connect())
    await end_of(conn, session)
    await rescue_ended_sessions(conn, grace=LATER)
    back, rescuer = await connect(), await connect()

    async with rescuer.transaction():
        assert await rescue_disconnected(rescuer, grace=NOW) == [claim.id]
        coming_back = asyncio.create_task(publish(back, [claim.worker_id]))
        await waits(conn, back)
    await coming_back

    assert await moves_of(conn, claim.id) == ["rescue"]
    assert await column(conn, claim.id, "attempt_id") is None


async def test_ended_session_triggers_at_most_one_rescue(conn: Any, connect: Connect):
    """The worker lives, and claims on another connection before it has a new session: it is not robbed a second time."""
    claim = await present(conn, session := await connect())
    await end_of(conn, session)
    await rescue_ended_sessions(conn, grace=LATER)
    await rescue_ended_sessions(conn, grace=NOW)

    await make_due(conn, claim.id)
    await take(conn, claim.id, claim.worker_id)

    assert await rescue_ended_sessions(conn, grace=NOW) == ([], [])
    assert await state_of(conn, claim.id) == "running"


async def test_process_that_connected_after_the_last_heartbeat_rescues_no_ended_session(conn: Any, connect: Connect):
    """F-26: after a restart everybody's session is gone, and the first who is back must not rob those who are on their way."""
    claim = await present(conn, session := await connect())
    await end_of(conn, session)

    noted, _ = await rescue_ended_sessions(await connect(), grace=NOW)

    assert noted == []
    assert await rescue_ended_sessions(conn, grace=LATER) == ([claim.worker_id], [])  # who was there all the while can


async def test_no_session_is_published_behind_a_pooler(conn: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch):
    """A pooler tells its clients a number of its own: the session is the pooler's, and says nothing about the worker."""
    session = await connect()
    monkeypatch.setattr(type(session.info), "backend_pid", property(lambda _: 1))

    claim = await present(conn, session)

    assert await value(conn, "SELECT session_pid FROM holdfast.workers WHERE id = %s", claim.worker_id) is None


async def test_session_with_a_hidden_start_time_is_treated_as_live(conn: Any, connect: Connect):
    """Of other roles' sessions Postgres tells the process id alone."""
    role = f"holdfast_test_{uuid4().hex[:8]}"
    claim = await present(conn, await connect())
    looker = await connect()
    await renew_leases(conn, [claim.worker_id], lease=LONG)
    await conn.execute(
        f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA holdfast TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO {role}"
    )
    try:
        await looker.execute(f"SET ROLE {role}")
        assert await rescue_ended_sessions(looker, grace=NOW) == ([], [])
    finally:
        await looker.execute("RESET ROLE")
        await conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_resigned_worker_has_no_session(conn: Any, connect: Connect):
    claim = await hold(conn)
    await conn.execute("UPDATE holdfast.workers SET stopped_at = clock_timestamp()")

    await publish(await connect(), [claim.worker_id])

    assert await value(conn, "SELECT session_pid FROM holdfast.workers WHERE id = %s", claim.worker_id) is None
