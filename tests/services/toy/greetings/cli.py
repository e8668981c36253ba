"""`holdfast greeting list`"""

from typing import Annotated

import typer

from holdfast.toolkit.cli.output import Column, Shape
from holdfast.toolkit.cli.verb import Session, verb

app = typer.Typer(help="Greetings: list them.", no_args_is_help=True)
SHAPE = Shape("greeting", [Column("NAME", "name"), Column("TEXT", "text")], key="name")


@verb(app, "list")
def list_command(session: Session) -> None:
    """List all greetings."""
    session.rows(SHAPE, session.get("/api/greetings"))


@verb(app, "show")
def show_command(session: Session, name: Annotated[str, typer.Argument(help="A person.")]) -> None:
    """Show one greeting."""
    session.rows(SHAPE, [one for one in session.get("/api/greetings") if one["name"] == name])
