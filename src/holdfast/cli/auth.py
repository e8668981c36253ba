"""`holdfast auth login | logout | whoami | token create | token list | token revoke`"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.addresses import api_at
from holdfast.cli.output import Column, Kind, Shape
from holdfast.cli.verb import All, Limit, Reason, Session, Yes, verb
from holdfast.cli.way import OverHttp
from holdfast.client import credentials
from holdfast.client.credentials import Saved
from holdfast.settings import settings

app = typer.Typer(help="Sign in, and make or revoke API tokens.", no_args_is_help=True)
tokens = typer.Typer(help="API tokens.", no_args_is_help=True)
app.add_typer(tokens, name="token")

ME = Shape("caller", [Column("ACTOR", "actor"), Column("METHOD", "method"), Column("ROLE", "role")], key="actor")


SHAPE = Shape(
    "token",
    [
        Column("ID", "id"),
        Column("NAME", "name"),
        Column("ROLE", "role"),
        Column("STATE", "state", Kind.WORD),
        Column("EXPIRES", "expires_at", Kind.TIME),
        Column("USED", "last_used_at", Kind.TIME),
        Column("CREATED", "created_at", Kind.TIME, wide=True),
        Column("BY", "created_by", wide=True),
        Column("SCOPES", "scopes", wide=True),
        Column("REVOKED", "revoked_at", Kind.TIME, wide=True),
    ],
    empty="No tokens.",
)


@verb(app, "login")
def login_command(
    session: Session,
    url: Annotated[
        str,
        typer.Argument(
            help="The API's address, such as https://holdfast.example, or a link that works once.", show_default=False
        ),
    ],
) -> None:
    """Keep a token for this API in a file that only you can read.

    The token is asked for, or read from standard input; a link that `holdfast up` or `serve` printed brings its own.
    """
    api_at(url, with_token=True, plain_http=settings().plain_http)  # before anything is asked for, or sent
    url, token = _redeemed(url) if "/login?code=" in url else (url, _asked_for())
    over = OverHttp(url, token.strip(), plain_http=settings().plain_http)
    try:
        me = over.ask("GET", "/api/whoami").data
        where = credentials.save(settings(), Saved(url.rstrip("/"), token.strip()))
        session.out.say(f"You are {me['actor']} ({me['role']}) at {url}; the token is in {where}.")
        session.out.one(ME, me, over)
    finally:
        over.close()


def _asked_for() -> str:
    given: str = typer.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    return given


def _redeemed(link: str) -> tuple[str, str]:
    """The address of the API, and the token that the link is good for once."""
    url, _, code = link.partition("/login?code=")
    over = OverHttp(url, None)
    try:
        return url, str(over.ask("GET", "/login", params={"code": code}).data["token"])
    finally:
        over.close()


@verb(app, "logout")
def logout_command(session: Session) -> None:
    """Forget the token of the last login. It stays valid: `holdfast auth token revoke` ends it."""
    was = credentials.forget(settings())
    session.out.say("The token of the last login is forgotten." if was else "There was no token to forget.")


@verb(app, "whoami")
def whoami_command(session: Session) -> None:
    """Say who you are to the API, or to the database."""
    session.one(ME, session.get("/api/whoami"))
    session.out.say(f"at {session.way.says}", "dim")


@verb(tokens, "list")
def list_command(session: Session, limit: Limit = 50, all: All = False) -> None:
    """List the tokens. Their secrets are nowhere to be had."""
    session.rows(SHAPE, session.listed("/api/tokens", most=None if all else limit))


@verb(tokens, "create")
def create_command(
    session: Session,
    name: Annotated[str, typer.Argument(help="Whose it is; what it does is done in this name.", show_default=False)],
    role: Annotated[str, typer.Option(help="viewer, analyst, ops, admin, worker or autoscaler.", show_default=False)],
    reason: Reason,
    days: Annotated[int, typer.Option(min=1, max=90, help="How long it lives.")] = 90,
    scope: Annotated[list[str] | None, typer.Option(help="Only this action of the role; may be repeated.")] = None,
) -> None:
    """Make a token and print it, once: it is stored nowhere."""
    asked = {"name": name, "role": role, "days": days, "scopes": scope, "reason": reason}
    made = session.act("POST", "/api/tokens", asked)
    session.out.say(f"Token {made['id']} of {made['name']} ({made['role']}), for {days} days. It is shown this once:", "bold")
    if session.out.for_people or session.out.format == "tsv":
        session.out.value("token", made["token"])
    else:
        session.one(SHAPE_MADE, made)


SHAPE_MADE = Shape("token", [Column("ID", "id"), Column("NAME", "name"), Column("ROLE", "role"), Column("TOKEN", "token")])


@verb(tokens, "revoke")
def revoke_command(
    session: Session,
    token: Annotated[str, typer.Argument(help="Its id: the eight characters after hf_.", metavar="ID", show_default=False)],
    reason: Reason,
    yes: Yes = False,
) -> None:
    """Revoke a token: from now on it opens nothing."""
    token_id = token.removeprefix("token/")
    session.confirm(f"Revoke token {token_id}?", yes)
    session.one(SHAPE, session.act("DELETE", f"/api/tokens/{token_id}", reason=reason))
