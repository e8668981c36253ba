"""Handlers that behave badly, or that are slow at the one place where it hurts. Run in forked worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psycopg
from proof.processes.handlers import FOLDER, PATIENT, allowed, quick, tell

from holdfast import Context, Done, Lock, job
from holdfast.database.pool import IDLE_LIMIT


async def wait_for(name: str) -> None:
    """Wait until the test has made a file of this name (`Scene.touch`)."""
    while not _exists(name):
        await asyncio.sleep(0.02)


def _exists(name: str) -> bool:
    return (Path(os.environ[FOLDER]) / name).exists()


@job("fault.late", **PATIENT)
async def late(ctx: Context, n: int) -> Done:
    """Is allowed to act, stops its own process with SIGSTOP, and acts when the process continues."""
    tell("start", ctx.job)
    await ctx.checkpoint()
    may = allowed(ctx)
    if ctx.job.attempt_no == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    tell("effect", ctx.job, **may, key=None)
    claim = ctx.job

    async def write(conn: psycopg.AsyncConnection[Any]) -> None:
        await conn.execute("INSERT INTO proof.published (job_id, attempt_id) VALUES (%s, %s)", [claim.id, claim.attempt_id])

    tell("finish", ctx.job)
    return Done(ctx.attempt_id, publish=write)


@job("fault.walker", **PATIENT)
async def walker(ctx: Context, n: int) -> str:
    """Acts again and again, asking each time whether it may, until its test lets it end."""
    tell("start", ctx.job)
    while not _exists("walked"):
        await ctx.checkpoint()
        tell("effect", ctx.job, **allowed(ctx), key=None)
        await asyncio.sleep(0.02)
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("fault.twice", **PATIENT)
async def twice(ctx: Context, n: int) -> str:
    """Acts twice, asking each time whether it may; in between its first attempt waits until its test lets it go on."""
    tell("start", ctx.job)
    for step in range(2):
        await ctx.checkpoint()
        tell("effect", ctx.job, **allowed(ctx), key=None)
        if step == 0 and ctx.job.attempt_no == 1:
            await wait_for("go on")
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("fault.parent", locks=lambda key, **_: [Lock(key)], **PATIENT)
async def parent(ctx: Context, n: int, key: str, waits: bool = False) -> Done:
    """Never asks whether it may go on; ends with a lock to give back and a child to make."""
    tell("start", ctx.job, key=key)
    if waits and ctx.job.attempt_no == 1:
        await wait_for("end of parent")
    tell("finish", ctx.job, key=key)
    return Done(ctx.attempt_id, then=[quick.new(n=n)])


@job("fault.talker", **PATIENT)
async def talker(ctx: Context, n: int) -> str:
    """Reports progress when its test lets it go on."""
    tell("start", ctx.job)
    if ctx.job.attempt_no == 1:
        await wait_for("go on")
    await ctx.progress(0.5, "half way")
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("fault.holder", **PATIENT)
async def holder(ctx: Context, n: int) -> Done:
    """Stops its own process with SIGSTOP inside its finish transaction, with its row locked. If that transaction may not be
    idle forever, then from here on only for a second."""
    tell("start", ctx.job)

    async def write(conn: psycopg.AsyncConnection[Any]) -> None:
        if ctx.job.attempt_no == 1:
            limited = "SELECT set_config(name, '1s', true) FROM pg_settings WHERE name = %s AND setting <> '0'"
            await conn.execute(limited, [IDLE_LIMIT])
            os.kill(os.getpid(), signal.SIGSTOP)

    tell("finish", ctx.job)
    return Done(ctx.attempt_id, publish=write)


@job("fault.endless", **PATIENT)
async def endless(ctx: Context, n: int) -> str:
    """Runs until it is stopped or its test lets it end; a later attempt is quick."""
    tell("start", ctx.job)
    if ctx.job.attempt_no == 1:
        await wait_for("end")
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("fault.stubborn", **PATIENT)
async def stubborn(ctx: Context, n: int) -> str:
    """Swallows every request to stop until its test lets it end."""
    tell("start", ctx.job)
    while ctx.job.attempt_no == 1 and not _exists("give in"):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("fault.poison", **PATIENT)
async def poison(ctx: Context, n: int, how: str) -> str:
    """Takes its process down."""
    tell("start", ctx.job)
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGSEGV)
    return "never"


def open_connections() -> list[tuple[int, dict[str, str]]]:
    found = [one for one in gc.get_objects() if isinstance(one, psycopg.AsyncConnection | psycopg.Connection)]
    return [(one.info.backend_pid, one.info.get_parameters()) for one in found if not one.closed]


@job("fault.connections", **PATIENT)
async def connections(ctx: Context, n: int) -> str:
    """Tells of every connection of its process: the server's number for it, and what it was opened with.

    The connections for statements and for hints are opened at the same time: a job may start before the second is open.
    """
    folder = Path(os.environ[FOLDER])
    tell("start", ctx.job)
    await wait_for("go on")
    while len(told := open_connections()) < 2:
        await asyncio.sleep(0.05)
    (folder / "connections").write_text(json.dumps(told))
    tell("finish", ctx.job)
    return ctx.attempt_id


@job("fault.sleeper", **PATIENT)
async def sleeper(ctx: Context, n: int) -> str:
    """Blocks the event loop of its worker until its test lets it end."""
    tell("start", ctx.job)
    while not _exists("wake up"):
        time.sleep(0.01)  # noqa: ASYNC251 - that is the fault
    tell("finish", ctx.job)
    return ctx.attempt_id
