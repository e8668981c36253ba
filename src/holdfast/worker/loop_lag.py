"""Measure how late the worker's event loop is, and report what blocks it. Started by: `loop.py`.

The event loop notes the time every 0.25 s. The heartbeat's thread checks the note: if it is old, the event loop is blocked, and
the stack of its thread shows where.
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
BLOCKED = 1.0  # seconds after which a blocked loop is logged; again at twice that time, and so on
DEEPEST = 5  # frames of the stack that are logged


class LoopLag:
    """How late the event loop of a worker is."""

    def __init__(self, kinds: Iterable[Job[..., Any]]) -> None:
        self._kinds: Mapping[CodeType, str] = {
            inspect.unwrap(kind.function).__code__: kind.kind
            for kind in kinds
            if inspect.isfunction(inspect.unwrap(kind.function))
        }
        self._ran_at = time.monotonic()
        self._late = 0.0
        self._log_at = BLOCKED
        self._thread = 0
        self._tick: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """How late the last tick was, or how late the next one is already."""
        return max(self._late, time.monotonic() - self._ran_at - TICK, 0.0)

    def start(self) -> None:
        """Called in the loop to be watched."""
        self._thread = threading.get_ident()
        self._ran_at = time.monotonic()
        self._tick = asyncio.get_running_loop().call_later(TICK, self._note)

    def stop(self) -> None:
        if self._tick is not None:
            self._tick.cancel()

    async def watch(self) -> None:
        """Check forever. Runs in the loop of another thread, until cancelled."""
        while True:
            await asyncio.sleep(TICK)
            self.check()

    def check(self) -> None:
        """Log a loop that has been blocked for long, and again each time that has doubled."""
        blocked_for = time.monotonic() - self._ran_at
        if blocked_for < self._log_at:
            return
        self._log_at = max(self._log_at, blocked_for) * 2
        stack = _stack(sys._current_frames().get(self._thread))
        kind = next((self._kinds[frame.f_code] for frame in stack if frame.f_code in self._kinds), None)
        log.warning("loop_blocked", seconds=round(blocked_for, 1), kind=kind, at=[_place(frame) for frame in stack[:DEEPEST]])

    def _note(self) -> None:
        now = time.monotonic()
        self._late = max(0.0, now - self._ran_at - TICK)
        self._ran_at, self._log_at = now, BLOCKED
        self._tick = asyncio.get_running_loop().call_later(TICK, self._note)


def _stack(frame: FrameType | None) -> list[FrameType]:
    """The frames of a thread, innermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
