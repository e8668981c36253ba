"""Wait for jobs to end, and watch what changes. Both look again and again; who watches also hears of changes from the API."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live

from holdfast.cli.exits import Exit, GaveUp, Told, exit_of_states
from holdfast.cli.output import Row, Shape
from holdfast.cli.times import length
from holdfast.cli.verb import Session

ENDED = frozenset({"completed", "failed", "cancelled"})
FIRST_LOOK, LONGEST_PAUSE = 0.1, 2.0  # seconds: soon after the start, seldom for what takes long
NOT_BEGUN = frozenset({"pending", "blocked"})

Wait = Annotated[bool, typer.Option("--wait", help="Wait until it has ended; the exit code says how.")]
Timeout = Annotated[str | None, typer.Option("--timeout", help="Wait no longer than this, such as 30s or 1h; then exit 124.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again whenever it changes; into a pipe: jsonl of changes.")]
Every = Annotated[
    float,
    typer.Option("--interval", min=0.2, help="Seconds between two looks; an API tells of changes before."),
]


def wait_for(session: Session, job_ids: Sequence[int], timeout: str | None) -> list[dict[str, Any]]:
    """These jobs when all of them have ended; `GaveUp` when that takes too long. Ctrl-C leaves them running."""
    deadline = math.inf if timeout is None else time.monotonic() + length(timeout).total_seconds()
    ended: list[dict[str, Any]] = []
    says, is_told_why = f"job {job_ids[0]}", False
    pause = FIRST_LOOK
    with session.out.errors.status("waiting") as status:
        while len(ended) < len(job_ids):  # all of them must end, so it is enough to look at one at a time
            job_id = job_ids[len(ended)]
            try:
                job = session.get(f"/api/jobs/{job_id}")
                if pause == LONGEST_PAUSE and job["state"] in NOT_BEGUN and not is_told_why:
                    session.out.say(why_not_begun(session, job))
                    is_told_why = True
            except Told as told:
                put_off = told.put_off
                if put_off is None:
                    raise
            else:
                if job["state"] in ENDED:
                    ended.append(job)
                    continue
                put_off, says = 0.0, waiting_sentence(job, more=len(job_ids) - len(ended) - 1)
            status.update(says)
            if time.monotonic() + max(pause, put_off) > deadline:
                raise GaveUp(f"{says} after {timeout}; it goes on without us: holdfast job wait {job_id}")
            try:
                time.sleep(max(pause, put_off))
            except KeyboardInterrupt:
                session.out.say(f"Not waiting any more; it goes on. To stop it: holdfast job cancel {job_id}")
                raise
            pause = min(pause * 1.5, LONGEST_PAUSE)
    return ended


def why_not_begun(session: Session, job: Row) -> str:
    """What keeps it: perhaps somebody waits who has yet to start a worker, and would wait without end."""
    sentence = session.get(f"/api/jobs/{job['id']}/explain")["sentence"]
    return f"job {job['id']} is still {job['state']}. {sentence}"


def waiting_sentence(job: Row, *, more: int = 0) -> str:
    """What is waited for, in one line. Pure. A share is shown only where the job itself tells one."""
    share = "" if job["progress"] is None else f" {job['progress']:.0%}"
    said = f": {job['message']}" if job["message"] else ""
    others = f", and up to {more} more" if more else ""
    return f"job {job['id']} is {job['state']}{share}{said}{others}"


def end_with(jobs: Sequence[Row]) -> None:
    """Leave with the code that these jobs' ends call for."""
    code = exit_of_states([job["state"] for job in jobs])
    if code is not Exit.OK:
        raise typer.Exit(code)


# ---------------------------------------------------------------------------------------------------------------------
# Watching
# ---------------------------------------------------------------------------------------------------------------------


def watch_rows(session: Session, shape: Shape, look: Callable[[], list[dict[str, Any]]], every: float) -> None:
    """Show rows until Ctrl-C: on a terminal the whole table in place, into a pipe a line of JSON for each row that changed."""
    if session.out.is_terminal and session.out.for_people:
        watch_screen(session, lambda: session.out.table(shape, look(), session.way.now()), every)
    seen: dict[str, str] = {}
    while True:
        for row in reversed(look()):
            name, text = shape.name(row), json.dumps(row, sort_keys=True)
            if seen.get(name) != text:
                seen[name] = text
                session.out.changed(row)
        session.way.pause(every)


def watch_screen(session: Session, make: Callable[[], RenderableType], every: float) -> None:
    """Draw a screen until Ctrl-C."""
    with Live(make(), console=session.out.console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(make(), refresh=True)
            session.way.pause(every)


def short_length(text: str | None) -> float | None:
    """A length of time in seconds, as the API wants it."""
    return None if text is None else (length(text) / timedelta(seconds=1))
