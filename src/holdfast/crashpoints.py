"""Named places where a test can make this process die. `crashpoint("name")` does nothing until one is armed.

Armed by `HOLDFAST_CRASH_AT=<name>` in the environment of a process (a real SIGKILL; `<name>:3` is the third time it comes
there), or in process by `holdfast.testing.crash_at`. A handler is safe when its job ends well whichever point it dies at.
Called by: every layer, so it stands at the bottom of them.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Any)

POINTS: Final[dict[str, str]] = {
    "claim.before": "About to claim: nothing has happened yet.",
    "claim.in_tx": "The claim is written and not committed.",
    "claim.after_commit": "The claim is committed and its handler has not started.",
    "lock.after": "A claim that took locks is committed.",
    "run.before_start": "The handler is about to be called.",
    "run.mid": "In the middle of a handler: at a checkpoint, at a report of progress, or where it calls this itself.",
    "run.after": "The handler has returned; its end is not written.",
    "hb.in_tx": "The renewal of the lease is written and not committed.",
    "hb.after": "The renewal of the lease is committed.",
    "submit.before_intent": "Before it is written down that something will be made outside.",
    "submit.after_intent": "It is written down, and nothing was sent.",
    "submit.after_send": "It was sent and no answer has come. Called by what talks to the engine.",
    "submit.after_reply_before_persist": "The answer has come and is not written down.",
    "poll.after_reply_before_persist": "The engine has answered a poll, and what it said is not written down.",
    "publish.in_tx_before": "In the finish transaction, before `publish` is called.",
    "publish.in_tx_after": "In the finish transaction, after `publish` was called.",
    "complete.in_tx_after_update": "The end of the attempt is written and not committed.",
    "complete.in_tx_after_child": "The children are made too, and nothing is committed.",
    "complete.in_tx_after_unlock": "Locks, slot, effects and dependants are settled too, and nothing is committed.",
    "complete.after_commit_before_ack": "The end is committed, and the worker has not heard of it.",
    "unlock.after": "The end of an attempt that held locks is committed.",
    "reap.in_tx": "Jobs were taken from a silent worker, and that is not committed.",
    "reap.after": "Jobs were taken from a silent worker.",
    "sched.after_read": "A scheduler has looked at the row of a loop and written nothing.",
    "sched.in_tx": "A loop was taken under a new term, and that is not committed.",
    "sched.after_commit": "A loop was taken under a new term, and its pass has not begun.",
    "export.streaming": "Rows of an export are on their way into a file.",
    "export.part_put": "One file of an export is in the store, and nobody can see it.",
    "export.uploaded": "Every file of an export is in the store, and no manifest names them.",
    "export.published": "The manifest of an export is in the store; the end of its job is not committed.",
    "lifecycle.marked": "An expired snapshot is marked, and its files are still there.",
    "lifecycle.files_removed": "The files of an expired snapshot are gone; its row is still there.",
    "migrate.mid": "The statements of a migration have run, and it is not committed.",
    "keeper.after_start": "The keeper has just started an executor.",
    "keeper.before_release": "The keeper has ended its executors at shutdown and has not given back what they held.",
}

_armed: dict[str, Callable[[], None]] = {}
_from_settings: str | None = None


def crashpoint(name: str) -> None:
    """Die here, if somebody armed this point."""
    if _armed:
        die = _armed.get(name)
        if die is not None:
            die()


def is_armed(name: str) -> bool:
    """Whether somebody waits for a process to come here."""
    return name in _armed


def arm(name: str, die: Callable[[], None]) -> None:
    """Have `die` called at this point."""
    _armed[name] = die


def disarm(name: str) -> None:
    """Nothing happens at this point any more."""
    _armed.pop(name, None)


def from_settings() -> str | None:
    """What the settings armed, for a process that is to die there as well."""
    return _from_settings


def arm_from_settings(name: str | None) -> None:
    """Arm a real SIGKILL of this process: at `name`, or at the n-th time it comes there with `name:n`."""
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
    """For a function that runs one statement on a connection, which has no inside to die in.

    While the point is armed, and only then, it runs in a transaction that is still open at the point.
    """

    def decorate(function: Callable[Concatenate[C, P], Awaitable[R]]) -> Callable[Concatenate[C, P], Awaitable[R]]:
        @functools.wraps(function)
        async def run(conn: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if point not in _armed:
                return await function(conn, *args, **kwargs)
            async with conn.transaction():
                answer = await function(conn, *args, **kwargs)
                crashpoint(point)
            return answer

        return run

    return decorate
