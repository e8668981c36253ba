"""The definition of a loop, and the registry of this process. Filled by: `@reconciler`, the kernel, the services.

Loop("prune", prune, every=timedelta(hours=1))
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import psycopg

from holdfast.errors import UsageError
from holdfast.jobs.given import a_span
from holdfast.timetable import cron as crontab

NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
SHORTEST = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class Result:
    """What a pass did: counts of handled, failed and skipped items; `fields` are added to its completed event."""

    items: int = 0
    failed: int = 0
    skipped: int = 0
    fields: dict[str, Any] = field(default_factory=dict)


Needed = Callable[[psycopg.AsyncConnection[Any]], Awaitable[bool]]
Function = Callable[[Any], Awaitable[Result | int | None]] | Callable[[Any], Result | int | None]


@dataclass(frozen=True, slots=True)
class Loop:
    """A periodic loop: a function, and when it is due. A coroutine function gets a `Pass`; a plain function runs in a thread
    and gets a `SyncPass`. It must be idempotent and interruptible: another process runs an interrupted pass again."""

    name: str
    function: Function
    every: timedelta | None = None  # from one due time to the next
    cron: str | None = None  # instead of `every`: minute hour day month weekday
    timezone: str = "UTC"  # of the cron expression
    first_run: Literal["after_interval", "at_once"] = "after_interval"  # when a database has never seen the loop
    catch_up: int = 0  # how many missed ticks are run later, one by one
    lease: timedelta = timedelta(seconds=30)  # how long a holder that stopped renewing keeps the loop
    retry_after: timedelta | None = timedelta(minutes=5)  # a failed tick, if the next is further away; then 10, 20, … minutes
    is_needed: Needed | None = None  # called when a scheduler starts: True runs the loop at once
    is_quiet: bool = False  # of passes that found nothing to do, only the first and one in five minutes are logged at INFO
    description: str = ""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UsageError(f"loop {self.name!r}: a name has lower-case letters, digits and _, and begins with a letter")
        if (self.every is None) == (self.cron is None):
            raise UsageError(f"loop {self.name}: set either every=timedelta(…) or cron='minute hour day month weekday'")
        if self.every is not None and self.every != timedelta(0):
            a_span(f"loop {self.name}: every", self.every)
        if self.every is not None and self.every < SHORTEST:
            raise UsageError(f"loop {self.name}: every={self.every} is too short; the minimum is {SHORTEST}")
        if self.catch_up < 0 or self.lease <= timedelta(0):
            raise UsageError(f"loop {self.name}: catch_up and lease must not be negative")
        if self.retry_after is not None and self.retry_after <= timedelta(0):
            raise UsageError(f"loop {self.name}: retry_after must be positive, or None for no retry before the next tick")
        if self.cron is not None:
            crontab.check(self.cron, self.timezone)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


_loops: dict[str, Loop] = {}


def register(loop: Loop) -> Loop:
    """Make a loop known to the schedulers of this process. The same name from another module is refused."""
    existing = _loops.get(loop.name)
    if existing is not None and _module(existing) != _module(loop):
        raise UsageError(f"loop {loop.name} is registered already, by {_module(existing)}; choose another name")
    _loops[loop.name] = loop
    return loop


def registered() -> dict[str, Loop]:
    """All registered loops by name."""
    return dict(_loops)


def _module(loop: Loop) -> str:
    owner = getattr(loop.function, "__self__", loop.function)  # a reconciler has the module of the function that it was made of
    return str(getattr(owner, "__module__", ""))
