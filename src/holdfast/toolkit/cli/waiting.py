"""Wait for jobs to end, and watch what changes. Both poll; `--watch` over HTTP also listens to the API's event stream."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.toolkit.cli.exit_codes import Exit, WaitTimeout, exit_of_states
from holdfast.toolkit.cli.output import Row, Shape
from holdfast.toolkit.cli.times import length
from holdfast.toolkit.cli.verb import Session
from holdfast.toolkit.client.problems import ApiError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

ENDED = frozenset({"completed", "failed", "cancelled"})
FIRST_POLL, LONGEST_PAUSE = 0.1, 2.0  # seconds
NOT_STARTED = frozenset({"pending", "blocked"})

Wait = Annotated[bool, typer.Option("--wait", help="Wait until it has ended; the exit code is that of `job wait`.")]
Timeout = Annotated[
    str | None, typer.Option("--timeout", help="Wait at most this long, such as 30s or 1h; then exit with 124.")
]
Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Refresh when something changes; in a pipe: print changed rows as JSON lines.")
]
Every = Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between refreshes, at most.")]


def wait_for(
    session: Session, job_ids: Sequence[int], timeout: str | None, *, leaves_running: bool = True
) -> list[dict[str, Any]]:
    """These jobs when all of them have ended; `WaitTimeout` if that takes too long.

    Ctrl-C leaves them running, and says so, unless the caller handles it.
    """
    deadline = deadline_of(timeout)
    ended: list[dict[str, Any]] = []
    message, is_explained = f"job {job_ids[0]}", False
    pause = FIRST_POLL

    def stopped() -> str:
        if not leaves_running or len(ended) == len(job_ids):
            return ""
        return f"Stopped waiting; the job continues. To cancel it: holdfast job cancel {job_ids[len(ended)]}"

    with session.out.status("waiting") as status, _say_at_ctrl_c(session, stopped):
        while len(ended) < len(job_ids):  # all of them must end, so polling one at a time is enough
            job_id = job_ids[len(ended)]
            try:
                job = session.get(f"/api/jobs/{job_id}")
                if pause == LONGEST_PAUSE and job["state"] in NOT_STARTED and not is_explained:
                    session.out.say(why_not_started(session, job))
                    is_explained = True
            except ApiError as error:
                delay = error.retry_after
                if delay is None:
                    raise
            else:
                if job["state"] in ENDED:
                    ended.append(job)
                    continue
                delay, message = 0.0, waiting_message(job, more=len(job_ids) - len(ended) - 1)
            status.update(message)
            if time.monotonic() + max(pause, delay) > deadline:
                raise WaitTimeout(f"{message} after {timeout}; it continues. To wait again: holdfast job wait {job_id}")
            time.sleep(max(pause, delay))
            pause = min(pause * 1.5, LONGEST_PAUSE)
    return ended


def deadline_of(timeout: str | None) -> float:
    """When a wait of at most `timeout` is over, on the monotonic clock."""
    return math.inf if timeout is None else time.monotonic() + length(timeout).total_seconds()


def follow(
    session: Session,
    fetch: Callable[[], dict[str, Any]],
    screen: Callable[[Row], RenderableType],
    *,
    name: str,
    ends: Collection[str],
    timeout: str | None,
    interval: float,
    cancel: str = "",
) -> dict[str, Any]:
    """Poll until the status is one of `ends`; what was fetched last. Shows a live screen on a terminal.

    `fetch` returns an object with a `status`, `name` says what it is in messages, `cancel` is the command that stops it.
    """
    deadline = deadline_of(timeout)
    found = fetch()
    live = session.out.is_terminal and session.out.for_people
    stopped = f"Stopped watching; {name} continues." + (f" To cancel it: {cancel}" if cancel else "")
    shown = import_module("rich.live").Live(console=session.out.console, auto_refresh=False, transient=True)
    with shown, _say_at_ctrl_c(session, lambda: stopped):
        while found["status"] not in ends:
            if live:
                shown.update(screen(found), refresh=True)
            if time.monotonic() + interval > deadline:
                raise WaitTimeout(f"{name} is {found['status']} after {timeout}; it continues")
            session.transport.wait_for_change(interval)
            found = fetch()
    return found


@contextmanager
def _say_at_ctrl_c(session: Session, sentence: Callable[[], str]) -> Iterator[None]:
    """Say what continues when Ctrl-C ends the block, whether it polls or sleeps at that moment."""
    try:
        yield
    except KeyboardInterrupt:
        if said := sentence():
            session.out.say(said)
        raise


def progress_bars(session: Session) -> Progress:
    """Progress bars on standard error: spinner, description, bar, percentage, elapsed time. A description is plain text."""
    rich = import_module("rich.progress")
    names = ("BarColumn", "TaskProgressColumn", "TimeElapsedColumn")
    text = rich.TextColumn("{task.description}", markup=False)
    columns = (rich.SpinnerColumn(), text, *(getattr(rich, name)() for name in names))
    made: Progress = rich.Progress(*columns, console=session.out.errors, transient=True)
    return made


def why_not_started(session: Session, job: Row) -> str:
    """Why a job has not started: perhaps no worker runs, and the wait would never end."""
    sentence = session.get(f"/api/jobs/{job['id']}/explain")["sentence"]
    return f"job {job['id']} is still {job['state']}. {sentence}"


def waiting_message(job: Row, *, more: int = 0) -> str:
    """What the command waits for, in one line. Pure."""
    share = "" if job["progress"] is None else f" {job['progress']:.0%}"
    message = f": {job['message']}" if job["message"] else ""
    others = f", and up to {more} more" if more else ""
    return f"job {job['id']} is {job['state']}{share}{message}{others}"


def end_with(jobs: Sequence[Row]) -> None:
    """Exit with the code for the states of these jobs."""
    end_with_code(exit_of_states([job["state"] for job in jobs]))


def end_with_code(code: Exit) -> None:
    """Exit with this code; continue if it is 0."""
    if code is not Exit.OK:
        raise typer.Exit(code)


# ---------------------------------------------------------------------------------------------------------------------
# Watching
# ---------------------------------------------------------------------------------------------------------------------


def watch_rows(session: Session, shape: Shape, fetch: Callable[[], list[dict[str, Any]]], every: float) -> None:
    """Show rows until Ctrl-C: on a terminal the whole table in place, in a pipe a JSON line for each changed row."""
    if session.out.is_terminal and session.out.for_people:
        watch_screen(session, lambda: session.out.table(shape, fetch(), session.transport.now()), every)
    seen: dict[str, str] = {}
    while True:
        for row in reversed(fetch()):
            name, text = shape.name(row), json.dumps(row, sort_keys=True)
            if seen.get(name) != text:
                seen[name] = text
                session.out.changed(row)
        session.transport.wait_for_change(every)


def watch_screen(session: Session, make: Callable[[], RenderableType], every: float) -> None:
    """Redraw a screen until Ctrl-C."""
    live = import_module("rich.live").Live
    with live(make(), console=session.out.console, auto_refresh=False, vertical_overflow="crop") as screen:
        while True:
            screen.update(make(), refresh=True)
            session.transport.wait_for_change(every)


def seconds_of(text: str | None) -> float | None:
    """A duration in seconds, as the API takes it."""
    return None if text is None else (length(text) / timedelta(seconds=1))
