"""The page of an action: it says what will happen and asks for the reason; its form calls the route of the API.

A refusal changes nothing. It is shown next to the row from which the action came.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.api.guarded import guard
from holdfast.api.limits import with_bounded_body
from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem
from holdfast.console.actions import Action, Field
from holdfast.console.api_call import Reply, call
from holdfast.console.render import Renderer, csrf_of, leave_note
from holdfast.console.view import link, root_of
from holdfast.console.views.frame import read_frame

LARGEST_FORM = 200_000  # bytes


async def ask(request: Request) -> Response:
    """Show what the action will do."""
    action = await action_of(request)
    given = _given(request, action)
    return await page(request, action, given, {}, "")


async def run(request: Request) -> Response:
    """Send the form to the API, and go back to the page that it came from."""
    action = await action_of(request)
    given = _given(request, action)
    form = await read_form(request)
    problem = missing(action, form)
    if problem:
        return await page(request, action, given, form, problem, status=422)
    reply = await call(request, action.method, _filled(action.path, given), body_of(action, form), _query(action, form, given))
    response = RedirectResponse(_back(request, action, given, reply), 303)
    said = reply.sentence if reply.is_refusal else _filled(action.done or f"{action.label}: done.", given)
    leave_note(response, request, target=_filled(action.target, given), text=said, refused=reply.is_refusal)
    return response


async def action_of(request: Request) -> Action:
    """The action in the path, if the caller may do it; a denial is audited, as by the route of the API."""
    renderer: Renderer = request.app.state.renderer
    action = renderer.actions.get(str(request.path_params["name"]))
    if action is None:
        raise Problem("not-found", "there is no such action")
    request.state.caller = await guard(request, action.policy)
    return action


async def page(
    request: Request, action: Action, given: Mapping[str, str], form: Mapping[str, str], problem: str, *, status: int = 200
) -> Response:
    renderer: Renderer = request.app.state.renderer
    async with plane_of(request).pool.connection() as conn:
        frame = await read_frame(conn)
    values = {
        "action": action,
        "says": _filled(action.says, given),
        "target": _filled(action.target, given),
        "given": given,
        "form": form,
        "back": _back(request, action, given, None),
        "problem": problem,
        "prefilled": {field.name: request.query_params.get(field.name, field.default) for field in action.fields},
    }
    return renderer.page(
        request, "confirm.html", values, title=action.label, caller=request.state.caller, frame=frame, status=status
    )


# ---------------------------------------------------------------------------------------------------------------------
# Forms
# ---------------------------------------------------------------------------------------------------------------------


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form that this console made for this caller."""
    bounded = await with_bounded_body(request, LARGEST_FORM)
    try:
        form = dict(parse_qsl(bytes(bounded.state.body).decode(), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise Problem("unreadable", "this is not a form") from None
    if form.get("csrf") != csrf_of(request, request.state.caller):
        raise Problem("cross-origin", "this form does not belong to your session; open the page again and repeat the action")
    return form


def missing(action: Action, form: Mapping[str, str]) -> str:
    """What the form lacks, as a sentence. Pure."""
    if action.reason != "none" and not form.get("reason", "").strip():
        return "A reason is required; it is recorded in the audit log."
    for field in action.fields:
        text = form.get(field.name, "").strip()
        if field.required and not text:
            return f"{field.label} is required."
        if field.kind == "number" and text and not text.removeprefix("-").isdecimal():
            return f"{field.label} must be a whole number, not {text!r}."
    return ""


def body_of(action: Action, form: Mapping[str, str]) -> dict[str, Any] | None:
    """The body of the request; None if the route takes none. Pure."""
    found = {**action.fixed, **{field.name: value for field in action.fields if (value := _value(field, form)) is not None}}
    if action.reason == "body":
        found["reason"] = form["reason"].strip()
    return found or None


def _value(field: Field, form: Mapping[str, str]) -> Any:
    text = form.get(field.name, "").strip()
    if field.kind == "checkbox":
        return bool(text)
    if field.kind == "number":
        return int(text) if text else None
    if field.kind == "list":
        return [one.strip() for one in text.split(",") if one.strip()]
    return text or None


def _query(action: Action, form: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    reason = {"reason": form["reason"].strip()} if action.reason == "query" else {}
    return {**{name: given[name] for name in action.query}, **reason}


# ---------------------------------------------------------------------------------------------------------------------
# The values of a button
# ---------------------------------------------------------------------------------------------------------------------


def _given(request: Request, action: Action) -> dict[str, str]:
    """The values that the action needs, from its address."""
    names = {name for text in (action.path, action.says, action.target) for _, name, _, _ in Formatter().parse(text) if name}
    names.update(action.query)
    lacking = sorted(name for name in names if not request.query_params.get(name))
    if lacking:
        raise Problem("invalid-request", f"{lacking[0]} is missing in the address of this action")
    return {name: request.query_params[name][:500] for name in names}


def _filled(text: str, given: Mapping[str, str]) -> str:
    """The text with the values; a path is decoded again by the framework, so a value cannot lead to another route."""
    if not text.startswith("/api/"):
        return text.format_map(given)
    if any(value in (".", "..") for value in given.values()):
        raise Problem("invalid-request", "this is not a name")
    return text.format_map(given)


def _back(request: Request, action: Action, given: Mapping[str, str], reply: Reply | None) -> str:
    """The page that the action came from; only pages of this console. The page of a deleted object is gone."""
    wanted = request.query_params.get("back", "")
    root = root_of(request)
    own = link(request, "/".join(quote(part) for part in _filled(action.back, given).split("/")))
    if action.method == "DELETE" and reply is not None and not reply.is_refusal and wanted.partition("?")[0] != own:
        return own
    if wanted.startswith(f"{root}/") and not wanted.startswith("//") and "\\" not in wanted and "\n" not in wanted:
        return wanted
    return own
