"""`holdfast config show | explain | list | set`"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from pydantic import SecretStr

from holdfast.cli.config_explain import explained
from holdfast.environment import variables
from holdfast.settings import Settings, settings
from holdfast.toolkit.cli.output import Column, Kind, NoClock, Row, Shape
from holdfast.toolkit.cli.verb import Reason, Session, verb

app = typer.Typer(help="Settings of this process, and values that can change at run time.", no_args_is_help=True)

HIDDEN = "•••"
PASSWORD = re.compile(r"(://[^:@/]*:)[^@]*(@)|([?&]password=)[^&]*")  # without an @, what follows the colon is a port
SETTINGS = Shape(
    "setting",
    [
        Column("SETTING", "variable"),
        Column("VALUE", "value"),
        Column("FROM", "source", Kind.WORD),
        Column("MEANING", "meaning", wide=True),
    ],
    key="variable",
)
ORIGINS = Shape(
    "setting",
    [
        Column("SETTING", "variable"),
        Column("VALUE", "value"),
        Column("ORIGIN", "origin"),
        Column("DEFAULT", "default", wide=True),
        Column("MEANING", "meaning", wide=True),
    ],
    key="variable",
)
VALUES = Shape(
    "value",
    [
        Column("KEY", "key"),
        Column("VALUE", "value", Kind.NUMBER),
        Column("DEFAULT", "default", Kind.NUMBER),
        Column("CHANGED", "updated_at", Kind.TIME),
        Column("BY", "updated_by"),
        Column("MEANING", "says", long=True),
        Column("LEAST", "least", Kind.NUMBER, wide=True),
        Column("MOST", "most", Kind.NUMBER, wide=True),
        Column("VERSION", "version", Kind.NUMBER, wide=True),
    ],
    key="key",
)


def shown(given: Settings) -> list[dict[str, Any]]:
    """Every setting with its source; secrets are masked. Pure."""
    rows = []
    for name, field in Settings.model_fields.items():
        value = getattr(given, name)
        source = "environment" if name in given.model_fields_set else "default"
        meaning = field.description or ""
        rows.append({"variable": f"HOLDFAST_{name.upper()}", "value": redacted(value), "source": source, "meaning": meaning})
    return rows


def redacted(value: Any) -> Any:
    """A value without secrets. Pure."""
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, str) and "://" in value:
        return PASSWORD.sub(lambda found: f"{found[1] or found[3]}{HIDDEN}{found[2] or ''}", value)
    return value if value is None or isinstance(value, bool | int | float | dict) else str(value)


@verb(app, "show")
def show_command(session: Session) -> None:
    """Show the settings of this process and their sources. Secrets are masked."""
    session.out.rows(SETTINGS, shown(settings()), NoClock())


@verb(app, "explain")
def explain_command(
    session: Session,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Only settings whose name contains one of these, such as `trino`.", show_default=False),
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what does not have its default.")] = False,
) -> None:
    """Show each setting of this process with the variable, preset or default that its value comes from. Secrets are masked.

    Variables that are set but not read are listed at the end, with the reason.
    """
    rows = [
        {**row, "value": redacted(row["value"]), "default": redacted(row["default"])}
        for row in explained(settings(), variables())
        if not (changed and row["origin"] == "default")
        and (not names or any(name.upper() in row["variable"] for name in names))
    ]
    session.out.rows(ORIGINS, rows, NoClock())


@verb(app, "list")
def list_command(session: Session) -> None:
    """List the values that can change at run time."""
    session.rows(VALUES, session.get("/api/config"))


@verb(app, "set")
def set_command(
    session: Session,
    key: Annotated[str, typer.Argument(help="The key.", show_default=False)],
    value: Annotated[int, typer.Argument(help="The new value.", show_default=False)],
    reason: Reason,
) -> None:
    """Change a value at run time."""
    changed: Row = session.act("PUT", f"/api/config/{key}", {"value": value, "reason": reason})
    session.one(VALUES, changed)
