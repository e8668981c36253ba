"""`holdfast periodic list | show | trigger | pause | resume | history`, and `holdfast scheduler run`"""

from __future__ import annotations

import asyncio
import getpass
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar

import psycopg
import typer
from rich.console import Console
from rich.table import Table

from holdfast.apps.database import database
from holdfast.apps.scheduler import schedule
from holdfast.apps.telemetry import begin_telemetry
from holdfast.database.pool import connect
from holdfast.database.revision import require_current
from holdfast.schedule import read, steer
from holdfast.schedule.read import LoopView, RunView
from holdfast.settings import Settings, settings

T = TypeVar("T")

app = typer.Typer(help="Periodic loops: look at them, trigger one, pause one.", no_args_is_help=True)
scheduler = typer.Typer(help="Run periodic loops.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The loop's name; `holdfast periodic list` has them.")]
Url = Annotated[str | None, typer.Option("--url", help="Which database; default: HOLDFAST_DATABASE_URL, or the embedded one.")]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept with the run.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who asks; default: your user name.")]


@scheduler.callback()
def _scheduler() -> None:
    """Run periodic loops."""


@scheduler.command("run")
def run_command(
    modules: Annotated[
        list[str] | None, typer.Option("--import", help="A module whose reconcilers to run; may be given more than once.")
    ] = None,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log as JSON lines, also on a terminal.")] = False,
) -> None:
    """Run the kernel's loops and those of these modules until SIGTERM or Ctrl-C. Run as many of it as you like."""
    given = _with(url)
    begin_telemetry(given, as_json=as_json)
    with database(given, Console(stderr=True)) as address:
        require_current(address)
        schedule(address, given, modules or [])


@app.command("list")
def list_command(url: Url = None, as_json: AsJson = False) -> None:
    """Show every loop: when it is due, who runs it, how it went last."""
    loops = _ask(url, read.list_loops)
    _print(loops, as_json, ("name", "schedule", "status", "next", "last", "ended", "failures"), _line)


@app.command("show")
def show_command(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Show everything about one loop; exits 1 if it is unhealthy."""
    loop = _ask(url, lambda conn: read.get_loop(conn, name))
    if as_json:
        typer.echo(json.dumps(_plain(loop)))
    else:
        table = Table(show_header=False, box=None)
        for field, value in _plain(loop).items():
            table.add_row(field.replace("_", " "), "" if value is None else str(value))
        Console().print(table)
    raise typer.Exit(0 if loop.is_healthy else 1)


@app.command("trigger")
def trigger_command(name: Name, reason: Reason, actor: Actor = None, url: Url = None, as_json: AsJson = False) -> None:
    """Ask for a run now: once a minute for each loop. It begins when a scheduler looks, within seconds."""
    queued = _ask(url, lambda conn: steer.trigger(conn, name, actor=actor or _me(), reason=reason))
    said = {
        "job_name": queued.name,
        "status": "queued",
        "run_id": queued.run_id,
        "triggered_at": queued.triggered_at.isoformat(),
        "triggered_by": queued.triggered_by,
        "reason": queued.reason,
    }
    typer.echo(json.dumps(said) if as_json else f"Run {queued.run_id} of {name} is queued.")


@app.command("pause")
def pause_command(
    name: Name,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; it is shown with the loop.")] = None,
    actor: Actor = None,
    url: Url = None,
) -> None:
    """Begin no more ticks of a loop; a run that somebody triggers still begins."""
    _ask(url, lambda conn: steer.pause(conn, name, actor=actor or _me(), reason=reason))
    typer.echo(f"{name} is paused.")


@app.command("resume")
def resume_command(name: Name, url: Url = None) -> None:
    """Let a paused loop go on with its next tick."""
    was_paused = _ask(url, lambda conn: steer.resume(conn, name))
    typer.echo(f"{name} goes on." if was_paused else f"{name} was not paused.")


@app.command("history")
def history_command(
    name: Name,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many runs.")] = 20,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the runs of a loop, newest first."""

    async def runs(conn: psycopg.AsyncConnection[Any]) -> list[RunView]:
        await read.get_loop(conn, name)  # a name that is not there is an error and no empty list
        return await read.list_runs(conn, name, limit=limit)

    head = ("run", "trigger", "due", "began", "took", "outcome", "items", "failed", "by", "error")
    _print(_ask(url, runs), as_json, head, _run_line)


# ---------------------------------------------------------------------------------------------------------------------


def _ask(url: str | None, question: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
    """Open a connection to the database that is meant, and ask."""

    async def ask(address: str) -> T:
        conn = await connect(address)
        try:
            return await question(conn)
        finally:
            await conn.close()

    with database(_with(url), Console(stderr=True)) as address:
        require_current(address)
        return asyncio.run(ask(address))


def _print(rows: Sequence[Any], as_json: bool, head: Sequence[str], line: Callable[[Any], Sequence[str]]) -> None:
    if as_json:
        typer.echo(json.dumps([_plain(row) for row in rows]))
        return
    table = Table(*head, box=None, header_style="bold")
    for row in rows:
        table.add_row(*line(row))
    Console().print(table)


def _line(loop: LoopView) -> Sequence[str]:
    schedule = str(loop.every) if loop.every else f"{loop.cron} {loop.timezone}"
    wait = "now" if loop.wait == timedelta(0) else "" if loop.wait is None else f"in {_short(loop.wait)}"
    ago = f"{_short(loop.now - loop.last_finished_at)} ago" if loop.last_finished_at else "never"
    return loop.name, schedule, loop.status, wait, ago, loop.last_outcome or "", str(loop.failures or "")


def _run_line(run: RunView) -> Sequence[str]:
    took = "" if run.took is None else _short(run.took)
    due, began = (at.strftime("%F %T") if at else "" for at in (run.due_at, run.started_at))
    by = f"{run.actor}: {run.reason}" if run.actor else ""
    return str(run.id), run.trigger, due, began, took, run.outcome, str(run.items), str(run.failed_items), by, run.error or ""


def _short(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 120 else str(span).split(".")[0]


def _plain(view: Any) -> dict[str, Any]:
    """As JSON has it: times as text, spans as seconds."""
    named = {field.name: getattr(view, field.name) for field in fields(view)}
    if isinstance(view, LoopView):
        named |= {"status": view.status, "is_healthy": view.is_healthy}
    return {
        name: value.isoformat()
        if isinstance(value, datetime)
        else value.total_seconds()
        if isinstance(value, timedelta)
        else value
        for name, value in named.items()
    }


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "command line"


def _with(url: str | None) -> Settings:
    return settings().model_copy(update={"database_url": url}) if url else settings()
