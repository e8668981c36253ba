"""Whether the worker's event loop turns, and who is in the way if it does not. Started by: the worker's loop.

The loop notes the time at every tick. A second thread, the heartbeat's, looks at the note: when it is old, the loop is
blocked, and what its thread is at can be read from there.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType
from typing import Any

from holdfast.telemetry.log import log
from holdfast.worker.kinds import Job

TICK = 0.25  # seconds
BLOCKED = 1.0  # seconds without a turn that are worth a line; again at twice that, and so on
DEEPEST = 5  # frames of the stack that are told


class LoopLag:
    """How late the event loop of a worker is."""

    def __init__(self, kinds: Iterable[Job[..., Any]]) -> None:
        self._kinds: Mapping[CodeType, str] = {
            inspect.unwrap(kind.function).__code__: kind.kind
            for kind in kinds
            if inspect.isfunction(inspect.unwrap(kind.function))
        }
        self._turned_at = time.monotonic()
        self._late = 0.0
        self._tell_at = BLOCKED
        self._thread = 0
        self._tick: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """How late the last tick was, or how late the next one is already."""
        return max(self._late, time.monotonic() - self._turned_at - TICK, 0.0)

    def start(self) -> None:
        """In the loop that is to be watched."""
        self._thread = threading.get_ident()
        self._turned_at = time.monotonic()
        self._tick = asyncio.get_running_loop().call_later(TICK, self._turn)

    def stop(self) -> None:
        if self._tick is not None:
            self._tick.cancel()

    async def watch(self) -> None:
        """In another thread's loop, until cancelled."""
        while True:
            await asyncio.sleep(TICK)
            self.look()

    def look(self) -> None:
        """Report a loop that has been blocked for long, and once more each time that has doubled."""
        blocked_for = time.monotonic() - self._turned_at
        if blocked_for < self._tell_at:
            return
        self._tell_at = max(self._tell_at, blocked_for) * 2
        stack = _stack(sys._current_frames().get(self._thread))
        kind = next((self._kinds[frame.f_code] for frame in stack if frame.f_code in self._kinds), None)
        log.warning("loop_blocked", seconds=round(blocked_for, 1), kind=kind, at=[_place(frame) for frame in stack[:DEEPEST]])

    def _turn(self) -> None:
        now = time.monotonic()
        self._late = max(0.0, now - self._turned_at - TICK)
        self._turned_at, self._tell_at = now, BLOCKED
        self._tick = asyncio.get_running_loop().call_later(TICK, self._turn)


def _stack(frame: FrameType | None) -> list[FrameType]:
    """The frames of a thread, innermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
