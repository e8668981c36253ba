"""Report an error of a command: what happened, and what to do, in terms of the command line. Called by: `main`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.telemetry.error_text import one_line
from holdfast.toolkit.cli.text import plain
from holdfast.toolkit.client.problems import ApiError

BUG = "This is a bug in Holdfast. Run the command again with --debug for the traceback, and report it."
LOG_IN = "Run `holdfast auth login URL`, or set HOLDFAST_TOKEN."
TEXT_OR_JSON = "key=text passes text; for a number or other JSON write key:=json, such as `-p count:=7`."
PRUNED = "Jobs that ended long ago may have been pruned."
LISTS = {"jobs": "job", "job-kinds": "kind", "kinds": "kind", "tokens": "auth token", "export-jobs": "job"}
# Fields of requests whose option has another name.
OPTIONS = {
    "expected_count": "--expect",
    "delay_seconds": "--delay",
    "max_seconds": "--max-duration",
    "q": "--search",
    "locks": "--lock",
    "allow_unknown_kind": "--allow-unknown",
    "mapping_version": "--version",
    "days": "--days",
}
ARGUMENTS = frozenset({"action", "kind", "value", "name", "mapping_id"})


def print_error(error: Exception) -> None:
    """Print an error and the advice on standard error."""
    text, advice = message_of(error)
    if sys.stderr.isatty():
        sys.stderr.write(f"\x1b[1;31merror:\x1b[0m {plain(text)}\n" + (f"\x1b[2m  {plain(advice)}\x1b[0m\n" if advice else ""))
    else:
        sys.stderr.write(f"error: {plain(text)}\n" + (f"  {plain(advice)}\n" if advice else ""))


def message_of(error: Exception) -> tuple[str, str | None]:
    """What happened, and what to do about it. Pure."""
    if isinstance(error, ApiError):
        return api_message_of(error)
    text, module = str(error).strip() or type(error).__name__, type(error).__module__
    if isinstance(error, HoldfastError):
        return text, None
    if module.startswith(("psycopg", "alembic", "sqlalchemy")):
        return one_line(text) or text, None
    if module.startswith("pydantic") and hasattr(error, "errors"):  # a setting that is not valid
        return "; ".join(_invalid_setting(one) for one in error.errors()), None
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}", None
    return f"{type(error).__name__}: {text}", BUG


def _invalid_setting(one: dict[str, Any]) -> str:
    name = "_".join(str(part) for part in one["loc"]).upper()
    variable = name if name.startswith("HOLDFAST_") else f"HOLDFAST_{name}"
    return f"{variable}={one.get('input')!s}: {one['msg']}"


def api_message_of(error: ApiError) -> tuple[str, str | None]:
    """A refusal of the API in terms of the command line. Pure."""
    if error.code == "MISSING_USE_CASE":
        return "--role is required: the engine runs SQL under a role, and there is no default", None
    if error.names_field("reason"):
        return "--reason is required for this; it is recorded in the audit log", None
    if error.status == 401:
        return f"authentication required: {error.detail}", LOG_IN
    if error.status == 403 and error.problem.get("required_roles"):
        roles = ", ".join(error.problem["required_roles"])
        return (
            error.detail,
            f"Required role: {roles}. Use a token with that role: `holdfast auth login URL`, or HOLDFAST_TOKEN.",
        )
    if error.retry_after is not None:
        return error.detail, f"Try again in {error.retry_after:g} s."
    if error.status == 404:
        where = _where_to_find(str(error.problem.get("instance", "")))
        return error.detail, where if " list` shows " not in error.detail else None
    if error.code == "UNKNOWN_KIND":
        return _unknown_kind(error.problem)
    if error.errors and error.status == 422:
        text = "; ".join(f"{field_of(one)}: {one.get('message')}" for one in error.errors)
        return text, TEXT_OR_JSON if any(_is_text(one) for one in error.errors) else None
    return error.detail, error.advice


def _unknown_kind(problem: Mapping[str, Any]) -> tuple[str, str]:
    """A kind that no worker has published: similar names, and the option that allows it. Pure."""
    near = problem.get("near") or ()
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    advice = "`holdfast kind list` shows the published kinds. Start a worker that has this kind, or pass --allow-unknown."
    return f"no worker has published the kind {problem.get('kind')}{meant}", advice


def _is_text(error: dict[str, Any]) -> bool:
    """Whether text was passed for an argument that is not text. Pure."""
    return str(error.get("pointer") or "").startswith("/body/payload/") and ' cannot be "' in str(error.get("message"))


def field_of(error: dict[str, Any]) -> str:
    """The option or argument that an invalid field of a request came from. Pure."""
    where, _, rest = str(error.get("pointer") or "").strip("/").partition("/")
    name, _, inner = rest.partition("/")
    if where == "path" or name in ARGUMENTS:
        return name.replace("_id", " id").replace("_", " ") or "the request"
    if name == "payload" and inner:
        return f"payload {inner.replace('/', '.')}"
    return OPTIONS.get(name) or (f"--{name.replace('_', '-')}" if name else "the request")


def _where_to_find(path: str) -> str | None:
    """The command that lists what exists there. Pure."""
    noun = path.removeprefix("/api/").partition("/")[0]
    if not path.startswith("/api/") or not noun:
        return None
    command = f"`holdfast {LISTS.get(noun, noun.removesuffix('s'))} list` shows what exists."
    return f"{command} {PRUNED}" if noun == "jobs" else command
