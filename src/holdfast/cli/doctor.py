"""`holdfast doctor`"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from holdfast import catalog
from holdfast.cli import findings
from holdfast.cli.fixes import apply_fixes
from holdfast.distribution import install_hint
from holdfast.errors import DatabaseProblem, HoldfastError, NotMigrated, TransactionPooler
from holdfast.extras import EXTRAS, missing_extras
from holdfast.settings import Settings, settings
from holdfast.toolkit.cli.exit_codes import Exit, exit_of
from holdfast.toolkit.cli.finding import Finding, Level, ok
from holdfast.toolkit.cli.http_transport import HttpTransport
from holdfast.toolkit.cli.output import Column, Kind, NoClock, Shape
from holdfast.toolkit.cli.times import counted
from holdfast.toolkit.cli.transport import ConnectFailed
from holdfast.toolkit.cli.verb import Session, Yes, verb
from holdfast.toolkit.client import credentials
from holdfast.toolkit.client.environment import client_settings
from holdfast.toolkit.client.problems import ApiError

app = typer.Typer()

SIGNS = {Level.OK: ("✓", "green"), Level.INFO: ("·", "dim"), Level.WARNING: ("!", "yellow"), Level.ERROR: ("✗", "bold red")}
CODES = {Level.OK: Exit.OK, Level.INFO: Exit.OK, Level.WARNING: Exit.PARTIAL, Level.ERROR: Exit.PARTIAL}
SHAPE = Shape(
    "finding",
    [Column("CHECK", "check"), Column("LEVEL", "level", Kind.WORD), Column("MESSAGE", "message"), Column("FIX", "fix")],
    key="check",
)


@verb(app)
def doctor(
    session: Session,
    fix: Annotated[bool, typer.Option("--fix", help="Fix what can be fixed safely, then check again.")] = False,
    yes: Yes = False,
) -> None:
    """Check the installation and suggest fixes. Exits with 0 if all checks pass, with 8 if one needs attention."""
    found = [*local_checks(settings()), *system_checks(session)]
    if fix and apply_fixes(session, found, yes=yes):
        session.close()
        found = [*local_checks(settings()), *system_checks(session)]
    if session.out.for_people:
        session.out.console.print(screen(found))
        session.out.console.print(summary(found))
    else:
        session.out.rows(SHAPE, [finding._asdict() for finding in found], NoClock())
    raise typer.Exit(CODES[findings.worst(found)])


def local_checks(given: Settings) -> Iterator[Finding]:
    """Checks that need no API and no database."""
    termination = getattr(given, "termination_grace_seconds", None)
    yield from findings.settings_sane(given.beat_seconds, given.lease, given.grace_seconds, termination)
    try:
        credentials.load(client_settings())
    except HoldfastError as error:
        yield Finding(
            "credentials", Level.ERROR, str(error), f"rm {credentials.path(client_settings())}; holdfast auth login URL"
        )
    missing = missing_extras()
    if "oidc" in missing and given.oidc_issuer:
        yield Finding("extras", Level.ERROR, "HOLDFAST_OIDC_ISSUER is set, and PyJWT is not installed", install_hint("oidc"))
    elif missing:
        yield Finding("extras", Level.INFO, f"not installed: {', '.join(missing)}", install_hint(*missing))
    else:
        yield ok("extras", f"installed: {', '.join(EXTRAS)}")
    if given.database_url is None and given.data_dir.exists():
        usage = shutil.disk_usage(given.data_dir)
        yield findings.disk(usage.free, usage.total, str(given.data_dir))
        yield Finding("embedded", Level.INFO, "the embedded Postgres is for one machine", "for more: set HOLDFAST_DATABASE_URL")
    if given.api_url is not None:
        yield _api(given.api_url)
    for check in catalog.checks():
        yield from check(given)


def _api(url: str) -> Finding:
    http = HttpTransport(url, None)
    try:
        version = http.request("GET", "/health").data["version"]
    except ConnectFailed as error:
        return Finding("api", Level.ERROR, str(error).partition(";")[0], "holdfast serve, or correct HOLDFAST_API_URL")
    except HoldfastError as error:
        return Finding("api", Level.ERROR, str(error), "see the log of `holdfast serve`")
    finally:
        http.close()
    return ok("api", f"version {version} answers at {url}")


def system_checks(session: Session) -> Iterator[Finding]:
    """Checks of the running system; if it cannot be reached, why."""
    try:
        current, wanted = session.transport.schema()
        yield ok("connection", f"connected to {session.transport.address}")
        yield findings.schema(current, wanted)
        seen = session.get("/api/doctor")
        loops = session.get("/api/periodic")
    except TransactionPooler as error:
        message, _, way_out = str(error).partition("; ")
        yield Finding("pooler", Level.ERROR, message, way_out)
    except NotMigrated as error:
        yield Finding("schema", Level.ERROR, str(error).partition(";")[0], "holdfast db migrate")
    except ApiError as error:
        fix = error.advice if exit_of(error) is not Exit.DENIED else "holdfast auth login URL, or set HOLDFAST_TOKEN"
        yield Finding("connection", Level.ERROR, error.detail, fix)
    except DatabaseProblem as error:
        yield Finding(
            "database", Level.ERROR, str(error).partition("; is the server")[0], "start it, or correct HOLDFAST_DATABASE_URL"
        )
    except HoldfastError as error:
        yield Finding(
            "connection", Level.ERROR, str(error), "set HOLDFAST_API_URL or HOLDFAST_DATABASE_URL, or run `holdfast up`"
        )
    else:
        yield from findings.in_the_database(seen)
        yield from findings.loops(loops, session.transport.now())
        if isinstance(session.transport, HttpTransport):
            yield findings.streams(session.transport.first_event())
            yield findings.metrics(session.transport.scrape())
        yield findings.auth(seen["knows_somebody"], over_http=session.is_over_http)
        yield findings.clock(time.time() - session.transport.now().timestamp())


def screen(found: list[Finding]) -> Table:
    """One line for each finding, with the fix below it."""
    made = Table.grid(padding=(0, 1, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for finding in found:
        sign, style = SIGNS[finding.level]
        made.add_row(
            Text(sign, style), Text(finding.check), Text(finding.message, "dim" if finding.level is Level.INFO else "")
        )
        if finding.fix:
            made.add_row("", "", Text(f"→ {finding.fix}", "dim" if finding.level is Level.INFO else style))
    return made


def summary(found: list[Finding]) -> Text:
    """The counts, in one line."""
    counts = {level: sum(finding.level is level for finding in found) for level in Level}
    if not counts[Level.WARNING] and not counts[Level.ERROR]:
        return Text(f"\nAll {counts[Level.OK]} checks passed.", "green")
    parts: Any = [("\n" + counted(counts[Level.ERROR], "error"), "bold red" if counts[Level.ERROR] else "dim")]
    parts += [", ", (counted(counts[Level.WARNING], "warning"), "yellow"), f", {counts[Level.OK]} passed."]
    return Text.assemble(*parts)
