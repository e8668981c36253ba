"""`holdfast doctor --fix`: what can be mended without guessing. Each act is audited like any other, and asked for first."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from rich.console import Console

from holdfast.apps.database import database
from holdfast.apps.migrate import bring_up_to_date
from holdfast.cli.bulk import finished
from holdfast.cli.findings import Finding, Level
from holdfast.cli.times import counted
from holdfast.cli.verb import Session
from holdfast.settings import settings

REASON = "holdfast doctor --fix"


def mend(session: Session, found: list[Finding], *, yes: bool) -> bool:
    """Mend what can be, if the person agrees; whether there was anything."""
    broken = {finding.check for finding in found if finding.level in (Level.WARNING, Level.ERROR)}
    if "schema" in broken and session.is_over_http:  # a database at hand here need not be the one that was seen
        session.out.say("The schema is brought up to date where its database is: holdfast db migrate")
        broken.discard("schema")
    todo = [check for check in MENDERS if check in broken]
    for check in todo:
        what, act = MENDERS[check]
        session.confirm(f"{what}?", yes)
        session.out.say(act(session))
    if not todo:
        session.out.say("There is nothing that this can mend by itself; see what each finding says.")
    return bool(todo)


def _migrate(session: Session) -> str:
    """The schema is brought up to date where it lies, so this needs the database and not only its API."""
    given = settings() if session.dsn is None else settings().model_copy(update={"database_url": session.dsn})
    with database(given, Console(stderr=True)) as address:
        return bring_up_to_date(address, "head")


def _recover(session: Session) -> str:
    asked = {"action": "recover", "filter": {"condition": "stale"}, "reason": REASON}
    seen = session.act("POST", "/api/jobs/bulk", {**asked, "dry_run": True})
    begun = session.act("POST", "/api/jobs/bulk", {**asked, "dry_run": False, "expected_count": seen["matched"]})
    operation = finished(session, begun)
    return f"{counted(operation['done'], 'job')} recovered, {operation['failed']} refused"


def _release(session: Session) -> str:
    keys = sorted({one["key"] for one in session.get("/api/doctor")["left_locks"]})
    for key in keys:
        session.act("DELETE", f"/api/locks/{quote(key, safe='')}", reason=REASON)
    return f"{counted(len(keys), 'lock')} released: {', '.join(keys)}"


# In the order in which they depend on each other.
MENDERS: dict[str, tuple[str, Callable[[Session], str]]] = {
    "schema": ("Bring the schema up to date", _migrate),
    "leases": ("Take the jobs from holders that went silent, and let others run them", _recover),
    "locks": ("Release the locks that ended jobs left behind", _release),
}
