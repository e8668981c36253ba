"""Reproducible concurrency on real Postgres: a seed interleaves transactions statement by statement.

With `asyncio.gather` the order depends on the operating system, so a race may never occur again. Here every round trip
of every connection waits at a gate, and the seed selects which one continues. A statement that waits for a lock is
detected with `pg_blocking_pids`, and the others continue meanwhile. So the same seed meets the same race again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import waiting

PATIENCE = 0.002  # seconds before we ask whether a statement waits for somebody
MOST_TURNS = 2000
STUCK_AFTER = 10.0  # seconds; Postgres finds a deadlock in far less

# By one of ours: a moment's wait for the vacuum or for somebody else's commit is no race of this schedule.
BLOCKED = "SELECT pid FROM unnest(%(asked)s::int[]) AS pid WHERE pg_blocking_pids(pid) && %(ours)s::int[]"


class Stuck(Exception):
    """Nobody can go on, and Postgres does not call it a deadlock."""


class SteppedConnection(psycopg.AsyncConnection[Any]):
    """A connection whose every round trip can be made to wait for its turn."""

    gate: Gate | None = None

    async def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        if self.gate is None:  # nobody else is at it: to wait in this thread costs half as much as in the event loop
            return waiting.wait(gen, self.pgconn.socket, interval=1.0)
        await self.gate.pass_through()
        return await super().wait(gen, *args, **options)


@dataclass(slots=True, eq=False)
class Gate:
    """Where one actor waits for its turn."""

    name: str
    changed: asyncio.Event
    turn: asyncio.Future[None] | None = None
    statements: int = 0
    waited: bool = False
    task: asyncio.Task[None] | None = None

    async def pass_through(self) -> None:
        self.turn = asyncio.get_running_loop().create_future()
        self.changed.set()
        await self.turn

    def open(self) -> None:
        assert self.turn is not None
        turn, self.turn = self.turn, None
        self.statements += 1
        self.waited = False
        turn.set_result(None)

    @property
    def done(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def in_flight(self) -> bool:
        return not self.done and self.turn is None


@dataclass(frozen=True, slots=True)
class Part:
    """What one actor does in an overlap, on which connection."""

    name: str
    conn: SteppedConnection
    work: Coroutine[Any, Any, None]


Waited = Callable[[str, int], None]


class Stepper:
    """Runs several parts at once, one statement at a time."""

    def __init__(self, rng: random.Random, watcher: psycopg.AsyncConnection[Any], on_wait: Waited) -> None:
        self._rng, self._watcher, self._on_wait = rng, watcher, on_wait
        self._changed = asyncio.Event()

    async def run(self, parts: Sequence[Part]) -> None:
        """Run the parts to their ends. The first error of any of them is raised when all have ended."""
        gates = [Gate(part.name, self._changed) for part in parts]
        by_pid: dict[int, Gate] = {}
        for part, gate in zip(parts, gates, strict=True):
            part.conn.gate = gate
            by_pid[part.conn.info.backend_pid] = gate
            gate.task = asyncio.create_task(part.work)
            gate.task.add_done_callback(lambda _: self._changed.set())
        try:
            await self._all_turns(gates, by_pid)
        finally:
            for part in parts:
                part.conn.gate = None
            for gate in gates:  # whoever still waits at a gate goes on without one, so that every connection ends idle
                if gate.turn is not None:
                    gate.open()
            await asyncio.gather(*(gate.task for gate in gates if gate.task), return_exceptions=True)
        for gate in gates:
            if gate.task is not None and (error := gate.task.exception()) is not None:
                raise error

    async def _all_turns(self, gates: list[Gate], by_pid: dict[int, Gate]) -> None:
        for _ in range(MOST_TURNS):
            await self._settle(gates, by_pid)
            ready = [gate for gate in gates if gate.turn is not None]
            if not ready:
                return
            self._rng.choice(ready).open()
        raise Stuck(f"no end after {MOST_TURNS} statements")

    async def _settle(self, gates: list[Gate], by_pid: dict[int, Gate]) -> None:
        """Until everybody has ended, stands at a gate, or waits for somebody who can still go on."""
        deadline = asyncio.get_running_loop().time() + STUCK_AFTER
        while any(gate.in_flight for gate in gates):
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), PATIENCE)
                continue
            except TimeoutError:
                pass
            waiting = await self._who_waits(by_pid)
            if all(gate in waiting for gate in gates if gate.in_flight) and any(gate.turn for gate in gates):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise Stuck(", ".join(gate.name for gate in gates if gate.in_flight))

    async def _who_waits(self, by_pid: dict[int, Gate]) -> list[Gate]:
        pids = [pid for pid, gate in by_pid.items() if gate.in_flight]
        rows = await (await self._watcher.execute(BLOCKED, {"asked": pids, "ours": list(by_pid)})).fetchall()
        waiting = [by_pid[pid] for (pid,) in rows]
        for gate in waiting:
            if not gate.waited:
                gate.waited = True
                self._on_wait(gate.name, gate.statements)
        return waiting
