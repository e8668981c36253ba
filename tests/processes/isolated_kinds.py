"""Kinds that run in a process of their own, among them some that kill it. Imported by the test and by its children."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Context, Done, Retry, SyncContext, job
from holdfast.worker.isolated.priority import AUTOGROUP


def _leave(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))


@job("isolated.where", run_in="process")
async def where(ctx: Context) -> dict[str, int]:
    return {"pid": os.getpid(), "parent": os.getppid()}


@job("isolated.sum", run_in="process")
def total(ctx: SyncContext) -> int:
    return sum(parent.result or 0 for parent in ctx.parents(int))


@job("isolated.where_plain", run_in="process")
def where_plain(ctx: SyncContext) -> int:
    ctx.progress(0.5, "half")
    ctx.checkpoint()
    return os.getpid()


@job("isolated.says_and_dies", run_in="process", max_crashes=2)
async def says_and_dies(ctx: Context) -> None:
    """Dies when its line has been kept, and says that it has come again where it runs once more."""
    ctx.log.info("here", pid=os.getpid())
    if ctx.job.attempt_no == 1:
        async with ctx.connection() as conn:
            while not (await (await conn.execute("SELECT FROM holdfast.log_lines")).fetchall()):
                await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


@job("isolated.everything", run_in="process")
async def everything(ctx: Context, note: str) -> Done:
    """Uses all that a context offers."""
    await ctx.progress(0.5, note)
    await ctx.checkpoint()
    async with ctx.effect("pod", detail={"note": note}) as pod:
        pod.made("pod-1")
    async with ctx.connection() as conn:
        await conn.execute("SELECT 1")
    await follow.enqueue(note="from inside")

    async def publish(conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute("INSERT INTO published (job_id, note) VALUES (%s, %s)", [ctx.job.id, note])

    return Done({"note": note}, publish=publish, then=[follow.new(note="chained")])


@job("isolated.publishes", run_in="process")
async def publishes(ctx: Context, note: str) -> Done:
    """And nothing else, so that only its own process comes to a crash point."""

    async def publish(conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute("INSERT INTO published (job_id, note) VALUES (%s, %s)", [ctx.job.id, note])

    return Done(publish=publish)


@job("isolated.follow")
async def follow(note: str) -> str:
    return note


@job("isolated.fails", run_in="process", max_attempts=2)
async def fails(ctx: Context) -> Retry:
    return Retry("busy", timedelta(milliseconds=1))


DEATHS = {
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
}


@job("isolated.dies", run_in="process", max_crashes=1)
async def dies(how: str) -> None:
    DEATHS[how]()


@job("isolated.dies_once", run_in="process", max_crashes=3)
async def dies_once(ctx: Context) -> int:
    if ctx.job.attempt_no == 1:
        os._exit(7)
    return ctx.job.attempt_no


@job("isolated.waits", run_in="process")
async def waits(mark: str) -> None:
    _leave(mark)
    await asyncio.Event().wait()


@job("isolated.deaf", run_in="process")
def deaf(mark: str) -> None:
    """Never looks at its context, and never ends."""
    Path(mark).write_text(str(os.getpid()))
    while True:
        sum(range(10_000))


@job("isolated.overruns", run_in="process", max_runtime=timedelta(seconds=0.2), max_attempts=1)
async def overruns() -> None:
    """Holds its interpreter's lock in native code, so that nothing inside its process can stop it.

    A coroutine: a plain function might be overdue before its thread has the lock.
    """
    ctypes.PyDLL(None).sleep(600)


@job("isolated.holds_the_gil", run_in="process")
def holds_the_gil(mark: str, seconds: int) -> None:
    Path(mark).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(seconds)


@job("isolated.starts_another", run_in="process")
def starts_another(mark: str) -> None:
    """What a handler starts ends with it."""
    import subprocess

    started = subprocess.Popen(["sleep", "600"])
    Path(mark).write_text(str(started.pid))
    while True:
        time.sleep(0.01)


@job("shared.innocent")
async def innocent(seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)


@job("shared.poison")
async def poison() -> None:
    """Not marked as dangerous by anybody: it takes down whatever it runs in."""
    os._exit(9)


@job("isolated.watches_for_the_end", run_in="process")
async def watches_for_the_end(ctx: Context, mark: str) -> str:
    """Comes to its end early when its worker is told to stop."""
    _leave(mark)
    while not ctx.stopping:
        await asyncio.sleep(0.01)
    return "in time"


@job("isolated.takes_memory", run_in="process", max_memory="256MiB", max_attempts=1)
def takes_memory(ctx: SyncContext, mebibytes: int) -> int:
    """Allocates so much, and fills it."""
    return len(bytearray(mebibytes * 2**20))


@job("isolated.niceness", run_in="process", nice=3)
def niceness(ctx: SyncContext) -> int:
    """How nice its process is, with the threads that it has."""
    return os.getpriority(os.PRIO_PROCESS, 0)


@job("isolated.group_niceness", run_in="process", nice=3)
def group_niceness() -> str:
    """The autogroup of its session, as the kernel shows it: `/autogroup-73 nice 3`. Empty if it has none."""
    group = Path(AUTOGROUP)
    return group.read_text().strip() if group.exists() else ""


@job("isolated.usual_niceness", run_in="process")
def usual_niceness(ctx: SyncContext) -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


@job("isolated.takes_memory_unlimited", run_in="process", max_attempts=1)
async def takes_memory_unlimited(mebibytes: int) -> int:
    return len(bytearray(mebibytes * 2**20))


@job("isolated.asks_duckdb", run_in="process", max_memory="256MiB", max_attempts=1)
def asks_duckdb(ctx: SyncContext, rows: int) -> int:
    """An aggregation that needs memory in native code."""
    import duckdb

    with duckdb.connect() as connection:
        query = f"SELECT count(DISTINCT i || 'abcdefghijklmnop') FROM range({rows}) AS t(i)"
        found: tuple[int] = connection.execute(query).fetchone()
        return found[0]


@job("isolated.aborts_without_memory", run_in="process", max_memory="256MiB", max_crashes=1)
def aborts_without_memory(ctx: SyncContext) -> None:
    """Like native code that has no other way out."""
    try:
        bytearray(2**30)
    except MemoryError:
        os.abort()
