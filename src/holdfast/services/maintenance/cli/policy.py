"""`holdfast table policy apply | list | show | preview | delete`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from holdfast.errors import UsageError
from holdfast.services.maintenance.cli.shapes import POLICIES, PREVIEW
from holdfast.services.maintenance.client.policy_file import read_policies
from holdfast.toolkit.cli.output import Row
from holdfast.toolkit.cli.times import clock_time, counted, moment
from holdfast.toolkit.cli.verb import All, Limit, Session, Yes, verb
from holdfast.toolkit.client.problems import ApiError

app = typer.Typer(help="Policies: which tables are maintained when.", no_args_is_help=True)

PolicyName = Annotated[str, typer.Argument(help="The policy's name.", metavar="NAME", show_default=False)]


@verb(app, "apply")
def apply_command(
    session: Session,
    file: Annotated[Path, typer.Option("--file", "-f", help="Policies as YAML or JSON.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the tables that would be maintained and the next five runs; store nothing.")
    ] = False,
) -> None:
    """Create or replace the policies of a file. Reports all errors at once."""
    policies = read_policies(file)
    previews = _each(session, file, policies, lambda one: session.act("POST", "/api/maintenance-policies/preview", one))
    if dry_run:
        for preview in previews:
            _show_preview(session, preview)
        return
    stored = [session.act("PUT", f"/api/maintenance-policies/{one['name']}", one) for one in policies]
    for one in stored:
        name, version = one["policy"]["name"], one["policy"]["version"]
        session.out.say(f"Policy {name} is at version {version}." if one["changed"] else f"Policy {name} is unchanged.")
    session.rows(POLICIES, [one["policy"] for one in stored])


def _each(session: Session, file: Path, policies: list[dict[str, Any]], send: Any) -> list[Any]:
    """Check every policy of a file before the first is stored; all mistakes of all of them are printed."""
    found, mistakes = [], 0
    for number, policy in enumerate(policies, 1):
        try:
            found.append(send(policy))
        except ApiError as error:
            if not error.errors:
                raise
            mistakes += len(error.errors)
            place = file if len(policies) == 1 else f"{file}, policy {number}"
            for one in error.errors:
                session.out.mistake(f"{place}{one['pointer'].removeprefix('/body')}: {one['message']}")
    if mistakes:
        raise UsageError(f"{counted(mistakes, 'mistake')} in {file}; nothing was changed")
    return found


@verb(app, "list")
def list_command(session: Session, limit: Limit = 50, all: All = False) -> None:
    """List the policies by name."""
    session.rows(POLICIES, session.listed("/api/maintenance-policies", most=None if all else limit))


@verb(app, "show")
def show_command(session: Session, name: PolicyName) -> None:
    """Show one policy with its definition."""
    session.one(POLICIES, session.get(f"/api/maintenance-policies/{name}"))


@verb(app, "preview")
def preview_command(session: Session, name: PolicyName) -> None:
    """List the tables that a policy would maintain now, and its next five runs."""
    _show_preview(session, session.get(f"/api/maintenance-policies/{name}/preview"))


@verb(app, "delete")
def delete_command(session: Session, name: PolicyName, yes: Yes = False) -> None:
    """Delete a policy. Jobs that it has enqueued continue."""
    session.confirm(f"Delete the policy {name}?", yes)
    session.act("DELETE", f"/api/maintenance-policies/{name}")
    session.out.say(f"Policy {name} is deleted.")


def _show_preview(session: Session, preview: Row) -> None:
    if not session.out.for_people:
        session.out.screen(Text(""), preview) if not session.out.is_default else session.rows(PREVIEW, preview["tables"])
        return
    lines = [Text(f"Policy {preview['name']}: {preview['note']}", style="bold")]
    runs = ", ".join(clock_time(moment(one), moment(one).tzinfo) for one in preview["next_runs"])
    if runs:
        lines.append(Text(f"Next runs ({preview['timezone']}): {runs}"))
    lines.append(Text(f"Actions by {preview['engine']}: {', '.join(one['action'] for one in preview['actions'])}"))
    now = session.transport.now()
    tables = session.out.table(PREVIEW, preview["tables"], now) if preview["tables"] else Text(PREVIEW.empty, style="dim")
    session.out.screen(Group(*lines, Text(""), tables), preview)
