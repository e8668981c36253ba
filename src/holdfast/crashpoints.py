"""Crash points: named places where a test can kill this process. `crashpoint("name")` does nothing unless it is armed.

A point is armed by `HOLDFAST_CRASH_AT=<name>` in the environment of a process (a real SIGKILL; `<name>:3`: the third time it is
reached), or in process by `holdfast.testing.crash_at`. A handler is safe if its job completes wherever it is killed. Called by:
every layer, so this is the lowest one.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from holdfast.registry import Registry

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Any)

KERNEL_POINTS: Final[dict[str, str]] = {
    "claim.before": "About to claim: nothing has happened yet.",
    "claim.in_tx": "The claim is written and not committed.",
    "claim.after_commit": "The claim is committed and its handler has not started.",
    "lock.after": "A claim that took locks is committed.",
    "run.before_start": "The handler is about to be called.",
    "run.mid": "In the middle of a handler: at a checkpoint, at a report of progress, or where it calls this itself.",
    "run.after": "The handler has returned; its end is not written.",
    "hb.in_tx": "The renewal of the lease is written and not committed.",
    "hb.after": "The renewal of the lease is committed.",
    "submit.before_intent": "Before the effect is recorded.",
    "submit.after_intent": "The effect is recorded, and nothing was sent.",
    "submit.after_send": "The request was sent and no response has arrived. Called by the code that talks to the engine.",
    "submit.after_reply_before_persist": "The response has arrived and is not stored.",
    "poll.after_reply_before_persist": "The engine has answered a poll, and the answer is not stored.",
    "publish.in_tx_before": "In the finish transaction, before `publish` is called.",
    "publish.in_tx_after": "In the finish transaction, after `publish` was called.",
    "complete.in_tx_after_update": "The end of the attempt is written and not committed.",
    "complete.in_tx_after_child": "The children are inserted too, and nothing is committed.",
    "complete.in_tx_after_unlock": "Locks, slot, effects and dependants are updated too, and nothing is committed.",
    "complete.after_commit_before_ack": "The end is committed, and the worker has not received the response.",
    "unlock.after": "The end of an attempt that held locks is committed.",
    "reap.in_tx": "Jobs of a dead worker are rescued and not committed.",
    "reap.after": "Jobs of a dead worker are rescued.",
    "periodic.in_tx_after_enqueue": "Due times of a periodic job are enqueued and not committed.",
    "periodic.after_commit": "Due times of a periodic job are enqueued, together with its next due time.",
    "sched.after_read": "A scheduler has read the row of a loop and written nothing.",
    "sched.in_tx": "A loop was claimed with a new term, and that is not committed.",
    "sched.after_commit": "A loop was claimed with a new term, and its pass has not begun.",
    "migrate.mid": "The statements of a migration have run, and it is not committed.",
    "keeper.after_start": "The keeper has just started an executor.",
    "keeper.before_release": "The keeper has ended its executors at shutdown and has not released their jobs.",
}
POINTS: Final = Registry("crash_points", KERNEL_POINTS)

_armed: dict[str, Callable[[], None]] = {}
_from_settings: str | None = None


def crashpoint(name: str) -> None:
    """Kill this process here, if the point is armed."""
    if _armed:
        die = _armed.get(name)
        if die is not None:
            die()


def arm(name: str, die: Callable[[], None]) -> None:
    """Call `die` at this point."""
    _armed[name] = die


def disarm(name: str) -> None:
    """Undo `arm`."""
    _armed.pop(name, None)


def from_settings() -> str | None:
    """The point that the settings armed, for a child process that arms it too."""
    return _from_settings


def arm_from_settings(name: str | None) -> None:
    """Arm a real SIGKILL of this process at `name`, or with `name:n` at the n-th time that it is reached."""
    global _from_settings
    if not name:
        return
    _from_settings = name
    point, _, number = name.partition(":")
    left = int(number or 1)

    def die() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    arm(point, die)


def dies_inside(point: str) -> Callable[[Callable[Concatenate[C, P], Awaitable[R]]], Callable[Concatenate[C, P], Awaitable[R]]]:
    """A crash point between a single statement and its commit.

    Only while the point is armed, the function runs in a transaction that is still open at the point.
    """

    def decorate(function: Callable[Concatenate[C, P], Awaitable[R]]) -> Callable[Concatenate[C, P], Awaitable[R]]:
        async def run_until_the_point(conn: C, *args: P.args, **kwargs: P.kwargs) -> R:
            async with conn.transaction():
                answer = await function(conn, *args, **kwargs)
                crashpoint(point)
            return answer

        @functools.wraps(function)
        def run(conn: C, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
            return (run_until_the_point if point in _armed else function)(conn, *args, **kwargs)

        return run

    return decorate
