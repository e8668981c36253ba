"""`holdfast auth login | logout | whoami | token create | token list | token revoke`"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.addresses import api_at
from holdfast.toolkit.cli.http_transport import HttpTransport
from holdfast.toolkit.cli.output import Column, Kind, Shape
from holdfast.toolkit.cli.transport import checked_url
from holdfast.toolkit.cli.verb import All, Limit, Reason, Session, Yes, verb
from holdfast.toolkit.client import credentials
from holdfast.toolkit.client.credentials import Saved
from holdfast.toolkit.client.environment import client_settings

app = typer.Typer(help="Log in, and manage API tokens.", no_args_is_help=True)
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
        Column("LAST USED", "last_used_at", Kind.TIME),
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
    address: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="Address of the API, such as https://holdfast.example, or a one-time login link.",
            show_default=False,
        ),
    ],
) -> None:
    """Save a token for an API in a file that only you can read.

    The command asks for the token, or reads it from standard input. A login link that `holdfast up` or `serve` printed needs
    none.
    """
    given = client_settings()
    url = checked_url(address) if "/login?code=" not in address else address
    api_at(url, with_token=True, plain_http=given.plain_http)  # before the token is asked for or sent
    url, token = _redeem(url) if "/login?code=" in url else (url, _read_token())
    http = HttpTransport(url, token.strip(), plain_http=given.plain_http)
    try:
        me = http.request("GET", "/api/whoami").data
        file = credentials.save(given, Saved(url.rstrip("/"), token.strip()))
        session.out.say(f"Logged in at {url} as {me['actor']} (role {me['role']}); the token is saved in {file}.")
        session.out.one(ME, me, http)
    finally:
        http.close()


def _read_token() -> str:
    given: str = typer.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    return given


def _redeem(link: str) -> tuple[str, str]:
    """The address of the API, and the token of a one-time login link."""
    url, _, code = link.partition("/login?code=")
    http = HttpTransport(url, None)
    try:
        return url, str(http.request("GET", "/login", params={"code": code}).data["token"])
    finally:
        http.close()


@verb(app, "logout")
def logout_command(session: Session) -> None:
    """Remove the saved token. It stays valid: `holdfast auth token revoke` ends it."""
    removed = credentials.forget(client_settings())
    session.out.say("The saved token is removed." if removed else "No token is saved.")


@verb(app, "whoami")
def whoami_command(session: Session) -> None:
    """Show your identity and role."""
    session.one(ME, session.get("/api/whoami"))
    session.out.say(f"at {session.transport.address}", "dim")


@verb(tokens, "list")
def list_command(session: Session, limit: Limit = 50, all: All = False) -> None:
    """List API tokens. Secrets are never shown again."""
    session.rows(SHAPE, session.listed("/api/tokens", most=None if all else limit))


@verb(tokens, "create")
def create_command(
    session: Session,
    name: Annotated[str, typer.Argument(help="Name of the owner; the audit log shows it.", show_default=False)],
    role: Annotated[str, typer.Option(help="viewer, analyst, ops, admin, worker or autoscaler.", show_default=False)],
    reason: Reason,
    days: Annotated[int, typer.Option(min=1, max=90, help="Days until it expires.")] = 90,
    scope: Annotated[list[str] | None, typer.Option(help="Permit only this action of the role; may be repeated.")] = None,
) -> None:
    """Create a token and print it. It is shown only once."""
    body = {"name": name, "role": role, "days": days, "scopes": scope, "reason": reason}
    made = session.act("POST", "/api/tokens", body)
    session.out.say(
        f"Token {made['id']} of {made['name']} ({made['role']}), valid for {days} days. It is shown only once:", "bold"
    )
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
    """Revoke a token at once."""
    token_id = token.removeprefix("token/")
    session.confirm(f"Revoke token {token_id}?", yes)
    session.one(SHAPE, session.act("DELETE", f"/api/tokens/{token_id}", reason=reason))
