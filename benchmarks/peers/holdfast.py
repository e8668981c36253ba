"""Holdfast as its own users meet it: decorated functions, `connect`, and the worker with its defaults."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import psycopg

import holdfast
from benchmarks.board import Board
from holdfast import distribution
from holdfast.database import migrate
from holdfast.jobs.claim import Found, claim
from holdfast.jobs.enqueue import enqueue_many
from holdfast.jobs.model import WorkerId
from holdfast.jobs.renew import WorkerInfo, register
from holdfast.worker.transports.direct import Direct
from holdfast.worker.transports.interface import Takes

_board: Board | None = None


@holdfast.job("noop")
async def noop(number: int) -> None:
    """The handler of every peer: one mark on the board."""
    assert _board is not None
    _board.started(number)


@holdfast.job("step")
async def step(number: int) -> holdfast.Done | None:
    """A step of the chain; the next one follows in the transaction that completes this one."""
    assert _board is not None
    _board.started(number)
    return holdfast.Done(then=[step.new(number=number + 1)]) if number + 1 < _board.steps else None


class HoldfastClient:
    """The client of `holdfast.connect`."""

    def __init__(self, client: holdfast.Client) -> None:
        self._client = client

    async def enqueue_one(self, number: int) -> None:
        await noop.enqueue(number=number)

    async def enqueue_step(self, number: int) -> None:
        await step.enqueue(number=number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await noop.enqueue_many({"number": number} for number in numbers)

    async def enqueue_blocked(self, count: int) -> None:
        """One job holds the lock for a worker that never ends; all others are claimed once, and blocked by it."""
        crowd = replace(noop.new(number=0), kind="crowd", locks=(holdfast.Lock("the one lock"),))
        worker = WorkerInfo(WorkerId(str(uuid4())), "holder", "nowhere", 0, "0")
        async with self._client.pool.connection() as conn:
            await register(conn, worker, lease=timedelta(hours=1))
            await enqueue_many(conn, [crowd] * (count + 1), hint=False)
            while await claim(conn, worker.id, kinds=["crowd"], limit=1000) or await self._still_pending(conn):
                continue

    async def _still_pending(self, conn: psycopg.AsyncConnection[Any]) -> bool:
        cursor = await conn.execute("SELECT EXISTS (SELECT FROM holdfast.jobs WHERE kind = 'crowd' AND state = 'pending')")
        row = await cursor.fetchone()
        return bool(row and row[0])


class Marked(Direct):
    """The worker's way to Postgres, noting when its first claim begins; nothing else is changed."""

    async def claim(self, worker_id: WorkerId, takes: Takes, limit: int) -> Found:
        assert _board is not None
        _board.claiming()
        return await super().claim(worker_id, takes, limit)


class Holdfast:
    """See `benchmarks.peers.Peer`."""

    name = "holdfast"
    packages = (distribution.NAME, "psycopg")
    settings = "Worker with concurrency 20 and defaults: fence, history and attempt rows on; enqueue tells idle workers"
    slow = False
    unfinished = """SELECT EXISTS (SELECT FROM holdfast.jobs
        WHERE kind <> 'crowd' AND state IN ('blocked', 'pending', 'running', 'submitted'))"""
    heartbeat = re.compile(r"UPDATE holdfast\.workers SET beat_at")
    can_copy = False
    can_block = True

    async def prepare(self, url: str) -> None:
        migrate.migrate(url)

    @asynccontextmanager
    async def client(self, url: str) -> AsyncIterator[HoldfastClient]:
        async with holdfast.connect(url) as client:
            yield HoldfastClient(client)

    @asynccontextmanager
    async def worker(self, url: str, board: Board) -> AsyncIterator[holdfast.Worker]:
        global _board
        _board = board
        with patch("holdfast.worker.loop.Direct", Marked):
            worker = holdfast.Worker(url, [noop, step], holdfast.WorkerOptions(concurrency=20))
        yield worker


PEER = Holdfast()
