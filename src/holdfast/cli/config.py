"""`holdfast config show | list | set`"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from pydantic import SecretStr

from holdfast.cli.output import Column, Kind, Row, Shape, Timeless
from holdfast.cli.verb import Reason, Session, verb
from holdfast.settings import Settings, settings

app = typer.Typer(help="Settings of this process, and values that may change while everything runs.", no_args_is_help=True)

HIDDEN = "•••"
PASSWORD = re.compile(r"(://[^:@/]*:|[?&]password=)[^@&]*(@|&|$)")
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
    """Every setting, where its value comes from, and the value without what is secret in it. Pure."""
    rows = []
    for name, field in Settings.model_fields.items():
        value = getattr(given, name)
        source = "environment" if name in given.model_fields_set else "default"
        meaning = field.description or ""
        rows.append({"variable": f"HOLDFAST_{name.upper()}", "value": redacted(value), "source": source, "meaning": meaning})
    return rows


def redacted(value: Any) -> Any:
    """A value as anybody may see it. Pure."""
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, str) and "://" in value:
        return PASSWORD.sub(rf"\1{HIDDEN}\2", value)
    return value if value is None or isinstance(value, bool | int | float | dict) else str(value)


@verb(app, "show")
def show_command(session: Session) -> None:
    """Show the settings of this process, and where each comes from. Secrets are not shown."""
    session.out.rows(SETTINGS, shown(settings()), Timeless())


@verb(app, "list")
def list_command(session: Session) -> None:
    """List the values that may be changed while everything runs."""
    session.rows(VALUES, session.get("/api/config"))


@verb(app, "set")
def set_command(
    session: Session,
    key: Annotated[str, typer.Argument(help="Which value.", show_default=False)],
    value: Annotated[int, typer.Argument(help="What it shall be.", show_default=False)],
    reason: Reason,
) -> None:
    """Change a value while everything runs."""
    changed: Row = session.act("PUT", f"/api/config/{key}", {"value": value, "reason": reason})
    session.one(VALUES, changed)
