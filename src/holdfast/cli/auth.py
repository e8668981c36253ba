"""`holdfast auth create | list | revoke`"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from holdfast.api.auth import LONGEST_LIFE
from holdfast.api.policy import Role
from holdfast.apps import tokens
from holdfast.apps.up import database
from holdfast.settings import Settings, settings

app = typer.Typer(help="API tokens, straight from the database.", no_args_is_help=True)
Url = Annotated[str | None, typer.Option("--url", help="Which database; default: HOLDFAST_DATABASE_URL, or the embedded one.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it stands in the audit.")]


@app.command("create")
def create_command(
    name: Annotated[str, typer.Argument(help="Whose it is; what it does is done in this name.")],
    role: Annotated[Role, typer.Option(help="What it may do.")],
    reason: Why,
    days: Annotated[int, typer.Option(min=1, max=LONGEST_LIFE.days, help="How long it lives.")] = LONGEST_LIFE.days,
    url: Url = None,
) -> None:
    """Make a token and print it, once: it is stored nowhere."""
    with database(_with(url), Console(stderr=True)) as address:
        _, token = asyncio.run(tokens.create(address, name, role, days, reason))
    typer.echo(token)


@app.command("list")
def list_command(url: Url = None) -> None:
    """List the tokens: id, role, name, when they end, when they were last used."""
    with database(_with(url), Console(stderr=True)) as address:
        for token in asyncio.run(tokens.listed(address)):
            state = "revoked" if token.revoked_at else f"until {token.expires_at:%Y-%m-%d}"
            used = f"used {token.last_used_at:%Y-%m-%d %H:%M}" if token.last_used_at else "never used"
            typer.echo(f"{token.id}\t{token.role}\t{token.name}\t{state}\t{used}")


@app.command("revoke")
def revoke_command(
    token_id: Annotated[str, typer.Argument(help="The eight characters after hf_.")], reason: Why, url: Url = None
) -> None:
    """Revoke a token: from now on it opens nothing."""
    with database(_with(url), Console(stderr=True)) as address:
        asyncio.run(tokens.revoke(address, token_id, reason))
    typer.echo(f"{token_id} is revoked")


def _with(url: str | None) -> Settings:
    return settings().model_copy(update={"database_url": url}) if url else settings()
