"""User-defined reconcilers: a function that finds due keys, and a function that acts on each key.

    @reconciler("expired_shares", every=timedelta(minutes=5))
    async def expired_shares(ctx: Pass) -> list[int]:
        async with ctx.connection() as conn:
            return [row[0] for row in await (await conn.execute("SELECT id FROM shares WHERE …")).fetchall()]

    @expired_shares.act
    async def expire(ctx: Pass, share_id: int) -> None:
        async with ctx.transaction() as conn:                        # refused if another process runs the loop
            await conn.execute("DELETE FROM shares WHERE id = %s", [share_id])

Each key is handled by itself: one that fails is retried later, and does not affect the others.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar, cast, overload

from holdfast.errors import TermLost, UsageError
from holdfast.jobs.outcome import Backoff
from holdfast.jobs.payload import storable
from holdfast.schedule.context import Pass, SyncPass
from holdfast.schedule.keys import forget_failed, note_failed, read_failed
from holdfast.schedule.registry import Loop, Result, register
from holdfast.telemetry.log import log
from holdfast.threads import in_thread

PAGE = 100
KEY_BACKOFF = Backoff(first=timedelta(seconds=10), longest=timedelta(hours=1))
K = TypeVar("K", str, int)
R = TypeVar("R")
Keys = Callable[[Pass], Awaitable[Iterable[K]]] | Callable[[Pass], AsyncIterator[K]] | Callable[[SyncPass], Iterable[K]]


class Reconciler(Generic[K]):
    """A loop that acts on due keys, one by one. Calling it calls the function that finds them."""

    def __init__(self, name: str, keys: Keys[K], backoff: Backoff) -> None:
        self.name = name
        self._keys: Keys[K] = keys
        self._backoff = backoff
        self._act: Callable[[Any, K], Any] | None = None
        self.__doc__, self.__module__ = keys.__doc__, keys.__module__

    def __call__(self, ctx: Any) -> Any:
        """Call the decorated function."""
        return cast("Callable[[Any], Any]", self._keys)(ctx)

    @overload
    def act(self, function: Callable[[Pass, K], Awaitable[R]]) -> Callable[[Pass, K], Awaitable[R]]: ...
    @overload
    def act(self, function: Callable[[SyncPass, K], R]) -> Callable[[SyncPass, K], R]: ...
    def act(self, function: Callable[[Any, K], Any]) -> Callable[[Any, K], Any]:
        """Decorate the function that acts on one key: `act(ctx, key)`, async, or plain to run in a thread."""
        if len(inspect.signature(function).parameters) != 2:
            raise UsageError(f"reconciler {self.name}: the function that acts takes the pass and one key")
        self._act = function
        return function

    def require_act(self) -> None:
        """Refuse a reconciler that finds keys and does nothing with them. Called when a scheduler is made."""
        if self._act is None:
            name = getattr(self._keys, "__name__", self.name)
            raise UsageError(
                f"reconciler {self.name} has no function that acts on its keys; decorate one with @{name}.act: "
                f"`@{name}.act` above `async def act(ctx: Pass, key: …)`"
            )

    async def run(self, ctx: Pass) -> Result:
        """One pass: pages of 100 keys, each key by itself."""
        self.require_act()
        done = failed = skipped = 0
        async for page in _pages(self._found(ctx)):
            ctx.check()
            async with ctx.connection() as conn:
                before = await read_failed(conn, self.name, [str(key) for key in page])
            for key in page:
                failures, waits = before.get(str(key), (0, False))
                if waits:
                    skipped += 1
                elif await self._try(ctx, key, failures):
                    done += 1
                else:
                    failed += 1
        return Result(done, failed, skipped)

    async def _try(self, ctx: Pass, key: K, failures: int) -> bool:
        """Act on one key. An error is recorded for this key only, except `TermLost`, which ends the pass."""
        try:
            await self._call(ctx, key)
        except TermLost:
            raise
        except Exception as error:
            log.warning("reconcile_key_failed", loop=self.name, key=str(key), error=str(error), exc_info=error)
            delay = self._backoff.delay(failures, random.random())  # noqa: S311 - spreads the tries
            async with ctx.transaction() as conn:
                await note_failed(conn, self.name, str(key), storable(f"{type(error).__name__}: {error}", 2000), delay)
            return False
        if failures:
            async with ctx.transaction() as conn:
                await forget_failed(conn, self.name, str(key))
        return True

    async def _call(self, ctx: Pass, key: K) -> None:
        ctx.check()
        assert self._act is not None
        if inspect.iscoroutinefunction(self._act):
            await self._act(ctx, key)
        else:
            await in_thread(self._act, ctx.in_thread(), key)

    async def _found(self, ctx: Pass) -> AsyncIterator[K]:
        """The due keys, from an async generator, a coroutine or a plain function."""
        find = cast("Callable[[Any], Any]", self._keys)
        if inspect.isasyncgenfunction(find):
            async for key in find(ctx):
                yield key
        elif inspect.iscoroutinefunction(find):
            for key in await find(ctx):
                yield key
        else:
            found = iter(await in_thread(find, ctx.in_thread()))
            while page := await in_thread(_some, found):  # a generator does its work here, so it stays in a thread
                for key in page:
                    yield key


def _some(found: Iterator[K]) -> list[K]:
    return [key for _, key in zip(range(PAGE), found, strict=False)]


async def _pages(keys: AsyncIterator[K]) -> AsyncIterator[list[K]]:
    page: list[K] = []
    async for key in keys:
        page.append(key)
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page


class _Decorator:
    def __init__(self, name: str, backoff: Backoff, options: dict[str, Any]) -> None:
        self._name, self._backoff, self._options = name, backoff, options

    def __call__(self, keys: Keys[K]) -> Reconciler[K]:
        made: Reconciler[K] = Reconciler(self._name, keys, self._backoff)
        description = (inspect.getdoc(keys) or "").split("\n")[0]
        register(Loop(self._name, made.run, description=description, **self._options))
        return made


def reconciler(
    name: str,
    *,
    every: timedelta | None = None,
    cron: str | None = None,
    timezone: str = "UTC",
    first_run: Literal["after_interval", "at_once"] = "after_interval",
    catch_up: int = 0,
    lease: timedelta = timedelta(seconds=30),
    backoff: Backoff = KEY_BACKOFF,
    quiet: bool = False,
) -> _Decorator:
    """Make a function that finds due keys a periodic loop. Of all schedulers on a database, one at a time runs it.

    `every` or `cron`: when it is due; `backoff`: the delay before a failed key is retried; `catch_up`: how many missed ticks
    are run later; `lease`: how long a process that stopped renewing keeps the loop.
    """
    options: dict[str, Any] = {"every": every, "cron": cron, "timezone": timezone, "first_run": first_run}
    return _Decorator(name, backoff, {**options, "catch_up": catch_up, "lease": lease, "is_quiet": quiet})
