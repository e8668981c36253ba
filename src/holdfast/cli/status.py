"""`holdfast status`"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.telemetry.error_text import one_line
from holdfast.toolkit.cli.output import STYLES, Row, Shape
from holdfast.toolkit.cli.times import counted, moment, relative, took
from holdfast.toolkit.cli.verb import Session, verb
from holdfast.toolkit.cli.waiting import Every, Watch, watch_rows, watch_screen

app = typer.Typer()

WHOLE = Shape("status", [], key="at")
MOST = 5  # lines of each part: one screen


@verb(app)
def status(session: Session, watch: Watch = False, interval: Every = 2.0) -> None:
    """Show the state of the system on one screen: jobs, longest waits, workers, failures, pauses, loops."""
    if watch and session.out.is_terminal and session.out.for_people:
        watch_screen(session, lambda: screen(gather(session), session.transport.now()), interval)
    if watch:
        watch_rows(session, WHOLE, lambda: [gather(session)], interval)
    found = gather(session)
    session.out.screen(screen(found, session.transport.now()), found)
    if found["attention"]:
        session.out.hint("holdfast doctor")


def gather(session: Session) -> dict[str, Any]:
    """The data of the screen."""
    seen = session.get("/api/doctor")
    failing = session.get("/api/failures", limit=MOST)
    loops = session.get("/api/periodic")
    oldest = sorted(seen["oldest"], key=lambda one: -one["seconds"])
    found = {
        "at": session.transport.address,
        "draining": any(one["kind"] == "*" and one["drained"] for one in seen["controls"]),
        "jobs": {state: count["value"] for state, count in seen["jobs"].items()},
        "capped": [state for state, count in seen["jobs"].items() if count["capped"]],
        "stale": seen["stale"],
        "quarantined": seen["quarantined"]["value"],
        "oldest_pending": oldest[:MOST],
        "workers": seen["workers"],
        "silent_workers": [one for one in seen["silent"] if one["holds"]],
        "no_worker_for": [k["kind"] for k in seen["kinds"] if k["waiting"] and not k["workers"] and not k["paused"]],
        "failing": failing,
        "controls": seen["controls"],
        "loops": [{name: loop[name] for name in ("job_name", "status", "healthy", "last_success")} for loop in loops],
    }
    return found | {"attention": attention(found)}


def attention(found: Row) -> list[str]:
    """What needs attention, in sentences, most urgent first. Pure."""
    urgent = []
    if found["draining"]:
        urgent.append("new jobs are refused: the system is draining")
    if found["stale"]:
        urgent.append(f"{counted(found['stale'], 'job')} without a live worker")
    if not sum(one["workers"] for one in found["workers"]):
        urgent.append("no worker is alive")
    elif found["no_worker_for"]:
        urgent.append(f"no worker runs {', '.join(found['no_worker_for'][:MOST])}")
    if found["quarantined"]:
        urgent.append(f"{counted(found['quarantined'], 'job')} in quarantine")
    urgent += [f"the loop {loop['job_name']} keeps failing" for loop in found["loops"] if not loop["healthy"]]
    return urgent


def screen(found: Row, now: datetime) -> RenderableType:
    """One screen for people. Pure."""
    parts: list[RenderableType] = [counts(found)]
    parts += [Text(f"! {sentence}", "yellow") for sentence in found["attention"]]
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="ellipsis", no_wrap=True)
    for title, rows in _parts(found, now):
        for number, row in enumerate(rows):
            lines.add_row(title if number == 0 else "", row)
    return Group(*parts, Text(""), lines)


def counts(found: Row) -> Text:
    """How many jobs are in each state."""
    made = Text()
    for state, count in found["jobs"].items():
        more = "+" if state in found["capped"] else ""
        made.append(f"{count:,}{more} ", style="bold" if count else "dim")
        made.append(f"{state}   ", style=STYLES.get(state, "") if count else "dim")
    return made


def _parts(found: Row, now: datetime) -> list[tuple[str, list[Text]]]:
    workers = [Text(f"{one['workers']} {one['runner']}, version {one['version']}") for one in found["workers"]]
    silent = [
        Text(f"{one['name']} was lost {took(one['seconds'])} ago and holds {counted(one['holds'], 'job')}", "red")
        for one in found["silent_workers"][:MOST]
    ]
    controls = [
        Text(f"{_named(one['kind'])} {_controlled(one)} by {one['actor']}: {one['reason'] or 'no reason given'}", "yellow")
        for one in found["controls"]
    ]
    failing = [
        Text.assemble((f"{one['jobs']:,} × ", "red"), (one["kind"], "bold"), f" {one_line(one['error']) or ''} ",
                      (relative(moment(one["last_at"]), now), "dim"))
        for one in found["failing"]
    ]  # fmt: skip
    return [
        ("waiting longest", [Text(f"{one['kind']} {took(one['seconds'])}") for one in found["oldest_pending"]] or [NONE]),
        ("workers", workers + silent or [Text("none alive", "red")]),
        ("paused, drained", controls or [NONE]),
        ("failing", failing or [NONE]),
        ("loops", [_loop(loop, now) for loop in found["loops"]]),
    ]


NONE = Text("none", "dim")


def _named(kind: str) -> str:
    return "everything" if kind == "*" else kind


def _controlled(one: Row) -> str:
    return " and ".join(word for word in ("paused", "drained") if one[word])


def _loop(loop: Row, now: datetime) -> Text:
    last = "never" if loop["last_success"] is None else relative(moment(loop["last_success"]), now)
    word = loop["status"] if loop["healthy"] else "unhealthy"
    return Text.assemble((f"{loop['job_name']} ", "bold"), (word, STYLES.get(word, "")), (f", last success {last}", "dim"))
