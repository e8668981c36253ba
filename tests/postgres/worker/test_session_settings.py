"""Defaults that a role or a database has for its sessions do not change what jobs do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import holdfast
from factories import rows, value
from holdfast import Context, Worker, WorkerOptions
from holdfast.database.pool import Link, connect, connect_sync, pool
from holdfast.jobs.enqueue import enqueue, enqueue_many, enqueue_many_sync
from holdfast.jobs.model import NewJob
from holdfast.worker.kinds import job
from workers import beside, until

HOSTILE = [
    ("DateStyle", "SQL, DMY"),
    ("DateStyle", "German"),
    ("IntervalStyle", "iso_8601"),
    ("IntervalStyle", "sql_standard"),
    ("client_encoding", "LATIN1"),
    ("client_encoding", "SQL_ASCII"),
    ("TimeZone", "Asia/Kathmandu"),
    ("search_path", "pg_catalog"),
    ("bytea_output", "escape"),
    ("extra_float_digits", "-15"),
    ("standard_conforming_strings", "off"),
    ("row_security", "off"),
    ("lock_timeout", "5s"),
    ("statement_timeout", "5s"),
    ("default_transaction_isolation", "repeatable read"),
    ("default_transaction_isolation", "serializable"),
]
OPTIONS = WorkerOptions(
    concurrency=3, beat=timedelta(milliseconds=200), lease=timedelta(seconds=60), grace=timedelta(seconds=5)
)
TEXT = {"text": "Zürich → 東京 \\ 'x'"}


@pytest.mark.parametrize(("name", "setting"), HOSTILE, ids=[f"{name} {setting}" for name, setting in HOSTILE])
@pytest.mark.parametrize("scope", ["ROLE", pytest.param("DATABASE", marks=pytest.mark.more)])
async def test_jobs_are_enqueued_and_run(database: str, conn: Any, scope: str, name: str, setting: str) -> None:
    """Through our own connections, and bulks on a connection of the caller's."""
    seen: list[Any] = []

    @job("settings.note", max_runtime=timedelta(minutes=3))
    async def note(ctx: Context, text: str) -> dict[str, Any]:
        await ctx.progress(0.1, "how → far")
        seen.append(text)
        return {"text": text}

    dbname = await value(conn, "SELECT current_database()")
    whose = f'DATABASE "{dbname}"' if scope == "DATABASE" else f'ROLE CURRENT_USER IN DATABASE "{dbname}"'
    quoted = ", ".join(f"'{part}'" for part in setting.split(", "))
    await conn.execute(f"ALTER {whose} SET {name} = {quoted}")

    try:
        async with holdfast.connect(database) as client, beside(Worker(database, [note], OPTIONS)):
            await client.enqueue(note.new(**TEXT))
            await client.enqueue(NewJob("settings.note", TEXT, run_after=timedelta(milliseconds=300)))
            await client.enqueue_many([NewJob("settings.note", TEXT, max_runtime=timedelta(minutes=3)) for _ in range(60)])
            await _on_a_connection_of_the_callers(database)
            await until(lambda: _ended(conn, 62 + 122))
    finally:
        await conn.execute(f"ALTER {whose} RESET {name}")  # the next test can have this database

    assert set(seen) == {TEXT["text"], "plain"}
    assert await rows(conn, "SELECT DISTINCT state, result->>'text', max_runtime FROM holdfast.jobs ORDER BY 2, 3") == [
        ("completed", TEXT["text"], timedelta(minutes=3)),
        ("completed", TEXT["text"], None),
        ("completed", "plain", timedelta(seconds=90)),
    ]  # fmt: skip


async def _on_a_connection_of_the_callers(database: str) -> None:
    """Which has the hostile setting: we do not change the settings of a session that is not ours."""
    late = [
        NewJob("settings.note", {"text": "plain"}, run_after=timedelta(milliseconds=100), max_runtime=timedelta(seconds=90))
    ]
    async with await psycopg.AsyncConnection.connect(database) as own:
        await enqueue(own, late[0])
        await enqueue_many(own, late * 60)
        await own.commit()
    with psycopg.connect(database) as own_sync:
        enqueue_many_sync(own_sync, late)
        enqueue_many_sync(own_sync, late * 60)


async def _ended(conn: Any, count: int) -> bool:
    return bool(await value(conn, "SELECT count(*) = %s FROM holdfast.jobs WHERE state = 'completed'", count))


SHOWN = "SELECT current_setting('DateStyle'), current_setting('IntervalStyle'), current_setting('client_encoding'), "
SHOWN += "current_setting('idle_in_transaction_session_timeout')"
OURS = ("ISO, MDY", "postgres", "UTF8", "10s")


async def test_every_connection_has_the_required_settings(database: str, conn: Any) -> None:
    dbname = await value(conn, "SELECT current_database()")
    for change in ("DateStyle = SQL, DMY", "IntervalStyle = iso_8601", "client_encoding = LATIN1"):
        await conn.execute(f'ALTER DATABASE "{dbname}" SET {change}')

    async with await connect(database) as one:
        assert await rows(one, SHOWN) == [OURS]
        assert "options" not in conninfo_to_dict(one.info.dsn)
    link = Link(database)
    async with link as linked:
        assert await rows(linked, SHOWN) == [OURS]
    await link.close()
    async with pool(database) as several, several.connection() as pooled:
        assert await rows(pooled, SHOWN) == [OURS]
    with connect_sync(database) as sync:
        assert sync.execute(SHOWN).fetchone() == OURS
