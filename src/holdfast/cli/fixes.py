"""`holdfast doctor --fix`: fixes that are safe to apply. Each is confirmed first and audited."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from rich.console import Console

from holdfast.apps.database import database
from holdfast.apps.migrate import bring_up_to_date
from holdfast.settings import settings
from holdfast.toolkit.cli.bulk import finished
from holdfast.toolkit.cli.finding import Finding, Level
from holdfast.toolkit.cli.times import counted
from holdfast.toolkit.cli.verb import Session

REASON = "holdfast doctor --fix"


def apply_fixes(session: Session, found: list[Finding], *, yes: bool) -> bool:
    """Apply the fixes that the user confirms; whether there was any."""
    broken = {finding.check for finding in found if finding.level in (Level.WARNING, Level.ERROR)}
    if "schema" in broken and session.is_over_http:  # the configured database need not be the one behind the API
        session.out.say("Migrate the schema on the machine that has the database: holdfast db migrate")
        broken.discard("schema")
    todo = [check for check in FIXES if check in broken]
    for check in todo:
        what, act = FIXES[check]
        session.confirm(f"{what}?", yes)
        session.out.say(act(session))
    if not todo:
        session.out.say("No finding can be fixed automatically; see the fix below each finding.")
    return bool(todo)


def _migrate(session: Session) -> str:
    """Migrate the schema; this needs the database and not only its API."""
    given = settings() if session.dsn is None else settings().model_copy(update={"database_url": session.dsn})
    with database(given, Console(stderr=True)) as address:
        return bring_up_to_date(address, "head")


def _recover(session: Session) -> str:
    body = {"action": "recover", "filter": {"condition": "stale"}, "reason": REASON}
    seen = session.act("POST", "/api/jobs/bulk", {**body, "dry_run": True})
    started = session.act("POST", "/api/jobs/bulk", {**body, "dry_run": False, "expected_count": seen["matched"]})
    operation = finished(session, started)
    return f"{counted(operation['done'], 'job')} recovered, {operation['failed']} refused"


def _release(session: Session) -> str:
    keys = sorted({one["key"] for one in session.get("/api/doctor")["left_locks"]})
    for key in keys:
        session.act("DELETE", f"/api/locks/{quote(key, safe='')}", reason=REASON)
    return f"{counted(len(keys), 'lock')} released: {', '.join(keys)}"


# In the order in which they depend on each other.
FIXES: dict[str, tuple[str, Callable[[Session], str]]] = {
    "schema": ("Migrate the schema", _migrate),
    "leases": ("Recover the jobs of lost workers", _recover),
    "locks": ("Release the locks of ended jobs", _release),
}
