"""Keepers as real processes on a test's own database: start one, read its log, find its executors, wait for a condition."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

import programs
from programs import Started

PATIENCE = 90.0  # seconds, for a machine that is busy with other things
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"

JOBS = """
import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import holdfast

libc = ctypes.PyDLL(None)  # holds the GIL during the call, as native code does that knows nothing of Python


def begin() -> None:
    print("begun", file=sys.stderr, flush=True)  # that a job is running says only that somebody has claimed it


@holdfast.job("quick")
async def quick() -> None: ...


@holdfast.job("endless")
async def endless() -> None:
    begin()
    await asyncio.Event().wait()


@holdfast.job("counted", max_crashes=5)
async def counted(ctx: holdfast.Context) -> int:
    return ctx.job.attempt_no


@holdfast.job("until_told")
async def until_told(ctx: holdfast.Context) -> str:
    begin()
    while not ctx.stopping:
        await asyncio.sleep(0.02)
    return "done in the grace"


@holdfast.job("snoozes_when_told")
def snoozes_when_told(ctx: holdfast.SyncContext) -> object:
    begin()
    while not ctx.stopping:
        time.sleep(0.02)
    return holdfast.Snooze(timedelta(0), "the rest another time")


@holdfast.job("native")
async def native(seconds: int) -> None:
    begin()
    libc.sleep(seconds)


@holdfast.job("native_then_checkpoint")
async def native_then_checkpoint(ctx: holdfast.Context, seconds: int) -> int:
    libc.sleep(seconds)
    await ctx.checkpoint()
    return ctx.job.attempt_no


@holdfast.job("native_fails", on_shutdown="fail")
async def native_fails(seconds: int) -> None:
    begin()
    libc.sleep(seconds)


@holdfast.job("endless_fails", on_shutdown="fail")
async def endless_fails() -> None:
    begin()
    await asyncio.Event().wait()


@holdfast.job("action_by_action", on_shutdown="fail")
async def action_by_action(ctx: holdfast.Context) -> None:
    begin()
    while True:
        await ctx.checkpoint()
        await asyncio.sleep(0.02)


@holdfast.job("asked_for_ever")
async def asked_for_ever(ctx: holdfast.Context) -> holdfast.Submitted:
    if ctx.job.is_poll:
        await asyncio.Event().wait()
    return holdfast.Submitted("a query", poll_after=timedelta())


async def exits(code: int) -> None:
    sys.exit(code)


@holdfast.job("dies_once")
async def dies_once(ctx: holdfast.Context, how: str) -> int:
    if ctx.job.attempt_no == 1:
        match how:
            case "segfault":
                ctypes.string_at(0)
            case "exit":
                os._exit(3)
            case "exit in a task":
                asyncio.create_task(exits(4))
                await asyncio.sleep(3600)
            case "oom":
                os._exit(137)
            case "kill":
                os.kill(os.getpid(), 9)
            case "overflow":  # of the stack, by a parser that calls itself
                libc.regcomp(ctypes.create_string_buffer(4096), b"(" * 1_000_000, 1)
    return ctx.job.attempt_no


def eat_all_memory() -> None:
    hoard = []
    while True:
        hoard.append(b"x" * (10 << 20))


@holdfast.job("forks")
async def forks(ctx: holdfast.Context, file: str, then: str) -> int:
    if ctx.job.attempt_no == 1:
        executor = os.getpid()
        for _ in range(5):  # as often as a limit on processes would let it: 31 copies of its executor
            os.fork()
        with open(file, "a") as note:
            note.write(f"{os.getpid()}\\n")
        while os.getpid() == executor and len(open(file).readlines()) < 32:  # the copies may end with their executor
            time.sleep(0.01)
        match then:
            case "raises":  # in each of them: there can be no more processes
                raise BlockingIOError(11, "Resource temporarily unavailable")
            case "exits":  # without its copies
                if os.getpid() != executor:
                    signal.pause()
                os._exit(3)
    return ctx.job.attempt_no


@holdfast.job("eats_memory_once")
async def eats_memory_once(ctx: holdfast.Context) -> int:
    if ctx.job.attempt_no == 1:
        eat_all_memory()
    return ctx.job.attempt_no


@holdfast.job("eats_memory_alone", run_in="process")
async def eats_memory_alone(ctx: holdfast.Context) -> int:
    if ctx.job.attempt_no == 1:
        eat_all_memory()
    return ctx.job.attempt_no


@holdfast.job("leaves_an_orphan")
async def leaves_an_orphan() -> None:
    subprocess.run(["sh", "-c", "setsid sh -c 'sleep 0.2; exit 3' &"], check=True)


@holdfast.job("raises", max_attempts=1)
async def raises() -> None:
    raise RuntimeError("no")


@holdfast.job("raises_once")
async def raises_once() -> None:
    raise RuntimeError("not yet")


@holdfast.job("leaves_a_process")
async def leaves_a_process(ctx: holdfast.Context, file: str) -> None:
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    with open(file, "w") as note:
        note.write(str(left.pid))
    await asyncio.Event().wait()


@holdfast.job("two_steps")
async def two_steps(ctx: holdfast.Context) -> None:
    ctx.chain(quick.new())


@holdfast.job("engine")
async def engine(ctx: holdfast.Context) -> object:
    if ctx.job.handle is None:
        return holdfast.Submitted({"query": 1}, poll_after=timedelta(0))
    return "engine is done"
"""


class Kept:
    """A keeper process and what it said."""

    def __init__(self, process: Started, log: Path) -> None:
        self.process, self._log = process, log

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        return self.process.wait(seconds)

    def said(self) -> str:
        return self._log.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.said().splitlines() if line.startswith("{") and line.endswith("}")]
        return [line for line in lines if line["event"] == name]

    def hears(self, name: str, times: int = 1) -> list[dict[str, Any]]:
        """Wait until this event was logged so many times."""
        until(lambda: len(self.events(name)) >= times or self._over(), f"{name} was never logged")
        assert len(self.events(name)) >= times, self.said()
        return self.events(name)

    def executor(self) -> int:
        """The pid of its executor, once that is at work."""
        started = self.hears("worker_started")  # from the executor itself; the keeper may log that it is ready a moment later
        return int(self.hears("executor_ready", len(started))[-1]["pid"])

    def has_begun(self) -> None:
        """Wait until a handler is at work."""
        until(lambda: "begun" in self.said().splitlines(), "no handler ever began")

    def _over(self) -> bool:
        return self.process.poll() is not None


class Start:
    """Starts keepers; whatever is left of them is killed afterwards."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._started: list[Kept] = []
        (folder / "their_jobs.py").write_text(JOBS)

    def __call__(
        self,
        *arguments: str,
        module: str = "their_jobs",
        url: str | None = None,
        inside: Sequence[str] = (),
        **environment: str,
    ) -> Kept:
        """`inside` is a command that runs the keeper, as a container's runtime does."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        path = os.pathsep.join([str(self._folder), inherited.get("PYTHONPATH", "")])
        settings = {"HOLDFAST_BEAT_SECONDS": "0.2", "HOLDFAST_LEASE_SECONDS": "30", "HOLDFAST_HOSTNAME": "here"}
        log = self._folder / f"keeper-{len(self._started)}.log"
        with log.open("wb") as out:
            command = ("worker", "run", "--import", module, "--log-format", "json", *arguments)
            env = {**inherited, **settings, "PYTHONPATH": path, "HOLDFAST_DATABASE_URL": url or self._url, **environment}
            process: Any = (
                subprocess.Popen(
                    [*inside, sys.executable, "-m", "holdfast", *command], env=env, cwd=self._folder, stdout=out, stderr=out
                )
                if inside
                else programs.start(*command, env=env, folder=self._folder, out=out, err=out)
            )
        kept = Kept(process, log)
        self._started.append(kept)
        return kept

    def end_all(self) -> None:
        for kept in self._started:
            kept.process.kill()
            kept.process.wait()


def until(reached: Callable[[], Any], otherwise: str = "it never happened", seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether there is such a process that is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def is_asleep_in_native_code(pid: int) -> bool:
    return Path(f"/proc/{pid}/wchan").exists() and "nanosleep" in Path(f"/proc/{pid}/wchan").read_text()


def row(conn: psycopg.Connection[Any], job_id: int) -> Any:
    return conn.execute("SELECT state, attempt_no, errors, crashes FROM holdfast.jobs WHERE id = %s", [job_id]).fetchone()


def state(conn: psycopg.Connection[Any], job_id: int) -> str:
    return str(row(conn, job_id)[0])


def start_is_written(conn: psycopg.Connection[Any], job_id: int) -> bool:
    """Whether the database knows that the attempt has begun: from then on its loss counts."""
    found = conn.execute("SELECT begun_at >= claimed_at FROM holdfast.jobs WHERE id = %s", [job_id]).fetchone()
    return found == (True,)


def moves(conn: psycopg.Connection[Any], job_id: int) -> list[tuple[str, str | None]]:
    found = conn.execute("SELECT move, reason FROM holdfast.history WHERE job_id = %s ORDER BY id", [job_id]).fetchall()
    return [(move, reason) for move, reason in found]


STOP, CONTINUE, KILL, TERM, INT = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL, signal.SIGTERM, signal.SIGINT
