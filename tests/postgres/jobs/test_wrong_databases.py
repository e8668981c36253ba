"""A database that cannot be used is refused early, with the cause and the fix."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolTimeout

import holdfast
from holdfast import Client, NewJob, Pass, Scheduler, reconciler
from holdfast.database.pool import CannotConnect, connect, pool
from holdfast.errors import HoldfastError, NotMigrated, UsageError
from holdfast.jobs.enqueue import enqueue, enqueue_sync
from holdfast.schedule import registry

SECRET = "not-the-right-one"
# Postgres 15 names the schema where newer versions name the relation.
MISSING = r'(relation "holdfast\..*"|schema "holdfast") does not exist.*run `holdfast db migrate`'


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.enqueue(NewJob("k")),
        lambda client: client.enqueue_many([NewJob("k"), NewJob("k")]),
        lambda client: client.enqueue("k"),
        lambda client: client.explain(1),
        lambda client: client.get(1),
        lambda client: client.list(),
        lambda client: client.cancel(1, actor="me"),
    ],
)
async def test_client_on_an_unmigrated_database_names_the_command(
    empty_database: str, call: Callable[[Client], Awaitable[Any]]
) -> None:
    async with holdfast.connect(empty_database) as client:
        with pytest.raises(NotMigrated, match=MISSING):
            await call(client)


async def test_an_enqueue_into_an_unmigrated_database_names_the_command(empty_database: str) -> None:
    async with await psycopg.AsyncConnection.connect(empty_database) as conn:
        with pytest.raises(NotMigrated, match="run `holdfast db migrate`"):
            await enqueue(conn, NewJob("k"))
    with psycopg.connect(empty_database) as conn, pytest.raises(NotMigrated, match="run `holdfast db migrate`"):
        enqueue_sync(conn, NewJob("k"))


async def test_a_scheduler_on_an_unmigrated_database_names_the_command(empty_database: str) -> None:
    with pytest.raises(NotMigrated, match=r"the schema is missing.*run `holdfast db migrate`"):
        async with Scheduler(empty_database, []):
            pass


def changed(url: str, **parts: Any) -> str:
    return make_conninfo(url, **parts)


async def test_unreachable_database_is_reported_before_the_first_call(database: str) -> None:
    parts = conninfo_to_dict(database)
    wrong = {
        "nosuchhost.invalid": changed(database, host="nosuchhost.invalid"),
        ":1/": changed(database, host="127.0.0.1", port=1),
        "no_such_database": changed(database, dbname="no_such_database"),
        f"{parts['user']}@": changed(database, password=SECRET),
    }
    for named, url in wrong.items():
        with pytest.raises(CannotConnect, match="cannot connect to") as refused:
            async with holdfast.connect(url):
                pass

        told = str(refused.value)
        assert named in told
        assert "check that the server runs" in told
        assert "\n" not in told
        assert SECRET not in told


async def test_pool_without_a_connection_names_the_cause(database: str) -> None:
    async with pool(changed(database, dbname="no_such_database"), most=1, patience=0.5) as lost:
        async with asyncio.timeout(60):
            while lost._connect_error is None:
                await asyncio.sleep(0.01)
        with pytest.raises(CannotConnect, match='database "no_such_database" does not exist'):
            await lost.getconn()


async def test_exhausted_pool_is_reported(database: str) -> None:
    async with pool(database, most=1) as busy, busy.connection():
        with pytest.raises(PoolTimeout, match="all 1 connections to .* are in use") as refused:
            await busy.getconn(timeout=0.1)

    assert not isinstance(refused.value, HoldfastError)


async def test_sqlalchemy_url_is_refused_with_the_fix() -> None:
    with pytest.raises(
        UsageError, match=r"starts with postgresql\+asyncpg://, which only SQLAlchemy understands; start it with"
    ):
        await connect("postgresql+asyncpg://ada:secret@localhost/shop")


async def test_reconciler_without_act_is_refused_by_the_scheduler(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loops", {})

    @reconciler("finds_only", cron="0 2 * * *")
    async def finds(ctx: Pass) -> list[int]:
        return [1]

    with pytest.raises(UsageError, match=r"finds_only has no function that acts on its keys; decorate one with @finds\.act"):
        Scheduler(database)

    @finds.act
    async def act(ctx: Pass, key: int) -> None: ...

    assert Scheduler(database).loops.keys() == {"finds_only"}


def test_reconciler_with_a_number_as_interval_is_refused_with_the_fix() -> None:
    with pytest.raises(UsageError, match=r"loop often: every cannot be 60: must be a timedelta; use timedelta\(seconds=60\)"):

        @reconciler("often", every=60)  # type: ignore[arg-type]
        async def often(ctx: Pass) -> list[int]:
            return []
