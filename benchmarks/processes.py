"""Child processes: started, told `go` and `stop`, and ended by their id whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 60
END_SECONDS = 20
LINE_LIMIT = 1 << 20


class ChildFailedError(Exception):
    """A child ended with an error; its last words are on stderr and in the message."""


class Child:
    """One process of `benchmarks.child`, in a session of its own so that its own children end with it."""

    def __init__(self, task: str, peer: str, url: str, **options: object) -> None:
        self._name = f"{task} of {peer}"
        self._command = [sys.executable, "-m", "benchmarks.child", task, peer, url]
        for option, value in options.items():
            self._command += [f"--{option}", str(value)]
        self._process: Process

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT, start_new_session=True, limit=LINE_LIMIT
        )
        self._complaints = asyncio.create_task(self._collect_complaints())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):  # the whole session is gone already
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._complaints.cancel()

    async def ready(self) -> None:
        """Wait until the child is connected."""
        line = await self._line(READY_SECONDS)
        if line != "ready":
            raise ChildFailedError(f"{self._name} said {line!r} instead of being ready")

    async def tell(self, word: str) -> None:
        """Send one word."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        await self._process.stdin.drain()

    async def result(self, within: float = END_SECONDS) -> dict[str, Any]:
        """Wait for the child's one line of JSON and for its end."""
        answer: dict[str, Any] = json.loads(await self._line(within))
        await asyncio.wait_for(self._process.wait(), END_SECONDS)
        return answer

    async def _line(self, within: float) -> str:
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), within)
        except TimeoutError:
            raise ChildFailedError(f"{self._name} said nothing for {within:.0f} s") from None
        if not line:
            complaints = await self._complaints
            raise ChildFailedError(f"{self._name} ended early:\n{complaints}")
        return line.decode().strip()

    async def _collect_complaints(self) -> str:
        assert self._process.stderr is not None
        return (await self._process.stderr.read()).decode(errors="replace")[-4000:]


async def run_child(task: str, peer: str, url: str, *, within: float = END_SECONDS, **options: object) -> dict[str, Any]:
    """Run a child that waits for nobody."""
    async with Child(task, peer, url, **options) as child:
        return await child.result(within)


async def time_child(task: str, peer: str, url: str, *, within: float = 120, **options: object) -> dict[str, Any]:
    """Run a child that gets ready first and then measures itself."""
    async with Child(task, peer, url, **options) as child:
        await child.ready()
        await child.tell("go")
        return await child.result(within)
