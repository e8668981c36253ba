"""`holdfast job logs`"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.cli.asking import job_id_of
from holdfast.cli.output import Column, Kind, Row, Shape
from holdfast.cli.times import counted, moment
from holdfast.cli.verb import Session
from holdfast.cli.waiting import ENDED, end_with

LEVELS = ["debug", "info", "warning", "error", "critical"]
BELOW = ("exception", "stack")
LOOK_EVERY = 0.5  # seconds: workers write at most twice a second

JobId = Annotated[str, typer.Argument(help="The job's number, or @latest.", metavar="ID", show_default=False)]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended; the exit code says how.")]
Attempt = Annotated[int | None, typer.Option("--attempt", min=1, help="Only what this attempt has said.")]
Tail = Annotated[int | None, typer.Option("--tail", min=1, help="Only the last so many.")]
Level = Annotated[
    str | None, typer.Option("--level", help="This level and above: info, warning, error, …", autocompletion=lambda: LEVELS)
]

SHAPE = Shape(
    "line",
    [
        Column("SAID", "said_at", Kind.TIME),
        Column("ATTEMPT", "attempt_no", Kind.NUMBER),
        Column("LEVEL", "level", Kind.WORD),
        Column("MESSAGE", "message", long=True),
        Column("FIELDS", "fields"),
        Column("LINE", "line_no", Kind.NUMBER, wide=True),
        Column("AT", "at", Kind.TIME, wide=True),
    ],
    empty="It has logged nothing that is kept.",
)


def logs_command(
    session: Session, job: JobId, follow: Follow = False, attempt: Attempt = None, tail: Tail = None, level: Level = None
) -> None:
    """Show what the handler of a job has logged: of each attempt the last 1,000 lines, oldest first."""
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
    """Show what is new until the job has ended. The job is looked at first: what it said is there before its end is."""
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
        time.sleep(LOOK_EVERY)


def _show(session: Session, lines: Sequence[Row], last: Row | None) -> None:
    """For people: each line whole, and a word beside it where another attempt begins."""
    for line in lines:
        if last is None or line["attempt_no"] != last["attempt_no"]:
            session.out.say(heading_of(line), "dim")
        session.out.said(moment(line["said_at"]), line["level"], text_of(line))
        last = line


def heading_of(line: Row) -> str:
    """Where the lines of an attempt begin. Pure."""
    before = line["line_no"] - 1
    return f"attempt {line['attempt_no']}" + (f", after {counted(before, 'line')}" if before else "")


def text_of(line: Row) -> str:
    """The message, what was said with it, and below it what was raised. Pure."""
    beside = {name: value for name, value in line["fields"].items() if name not in BELOW}
    below = [str(line["fields"][name]) for name in BELOW if name in line["fields"]]
    words = [line["message"], *(f"{name}={_value(value)}" for name, value in beside.items())]
    return "\n".join([" ".join(words), *below])


def _value(value: Any) -> str:
    is_plain = isinstance(value, str) and value and " " not in value
    return value if is_plain else json.dumps(value, ensure_ascii=False)
