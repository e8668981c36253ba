"""`holdfast job logs`"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.toolkit.cli.arguments import job_id_of
from holdfast.toolkit.cli.output import Column, Kind, Row, Shape
from holdfast.toolkit.cli.times import counted, moment
from holdfast.toolkit.cli.verb import Session
from holdfast.toolkit.cli.waiting import ENDED, end_with

LEVELS = ["debug", "info", "warning", "error", "critical"]
BELOW = ("exception", "stack")
POLL_SECONDS = 0.5  # seconds; workers write at most twice a second

JobId = Annotated[str, typer.Argument(help="The job's id, or @latest.", metavar="ID", show_default=False)]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Continue until the job has ended; the exit code is that of `job wait`.")
]
Attempt = Annotated[int | None, typer.Option("--attempt", min=1, help="Only lines of this attempt.")]
Tail = Annotated[int | None, typer.Option("--tail", min=1, help="Only the last lines, this many.")]
Level = Annotated[
    str | None,
    typer.Option("--level", help="Only this level and above: info, warning, error, …", autocompletion=lambda: LEVELS),
]

SHAPE = Shape(
    "line",
    [
        Column("TIME", "said_at", Kind.TIME),
        Column("ATTEMPT", "attempt_no", Kind.NUMBER),
        Column("LEVEL", "level", Kind.WORD),
        Column("MESSAGE", "message", long=True),
        Column("FIELDS", "fields"),
        Column("LINE", "line_no", Kind.NUMBER, wide=True),
        Column("AT", "at", Kind.TIME, wide=True),
    ],
    empty="No log lines are stored.",
)


def logs_command(
    session: Session, job: JobId, follow: Follow = False, attempt: Attempt = None, tail: Tail = None, level: Level = None
) -> None:
    """Show the log of a job's handler, oldest line first. The last 1,000 lines of each attempt are stored."""
    path = f"/api/jobs/{job_id_of(session, job)}"
    filters = {"attempt": attempt, "level": level}
    if follow:
        _follow(session, path, filters, tail)
        return
    lines = session.listed(f"{path}/logs", most=None, tail=tail, **filters)
    if session.out.for_people and lines:
        _show(session, lines, None)
    else:
        session.rows(SHAPE, lines)


def _follow(session: Session, path: str, filters: dict[str, Any], tail: int | None) -> None:
    """Show new lines until the job has ended. The job is read first: its lines are stored before its end."""
    last: dict[str, Any] | None = None
    while True:
        job = session.get(path)
        begin = {"tail": tail} if last is None else {"after": last["id"]}
        lines = session.listed(f"{path}/logs", most=None, **filters, **begin)
        if session.out.for_people:
            _show(session, lines, last)
        else:
            session.out.more(SHAPE, lines, is_first=last is None)
        last = lines[-1] if lines else last
        if job["state"] in ENDED:
            session.out.say(f"Job {job['id']} {job['state']}.", "dim")
            end_with([job])
            return
        time.sleep(POLL_SECONDS)


def _show(session: Session, lines: Sequence[Row], last: Row | None) -> None:
    """For people: each line complete, with a heading where an attempt begins."""
    for line in lines:
        if last is None or line["attempt_no"] != last["attempt_no"]:
            session.out.say(heading_of(line), "dim")
        session.out.said(moment(line["said_at"]), line["level"], text_of(line))
        last = line


def heading_of(line: Row) -> str:
    """The heading of an attempt. Pure."""
    before = line["line_no"] - 1
    return f"attempt {line['attempt_no']}" + (f", after {counted(before, 'line')}" if before else "")


def text_of(line: Row) -> str:
    """The message, its fields, and below it the exception. Pure."""
    beside = {name: value for name, value in line["fields"].items() if name not in BELOW}
    below = [str(line["fields"][name]) for name in BELOW if name in line["fields"]]
    words = [line["message"], *(f"{name}={_value(value)}" for name, value in beside.items())]
    return "\n".join([" ".join(words), *below])


def _value(value: Any) -> str:
    is_plain = isinstance(value, str) and value and " " not in value
    return value if is_plain else json.dumps(value, ensure_ascii=False)
