"""Bulk actions by filter or by selection: a dry run shows what would change, then a job does it. Used by: Jobs, Failures.

The filter is in the address, as text that the user sees. The form repeats it with the count of the dry run; if more jobs match
by then, the API refuses, and the page shows the new count. A selection is the filter `id:7,9`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem
from holdfast.console.api_call import Reply, call
from holdfast.console.confirm import read_form
from holdfast.console.filter_language import Filter, for_query, parse
from holdfast.console.render import Renderer, leave_note
from holdfast.console.view import link
from holdfast.console.views.frame import Frame, read_frame

VERBS = {
    "retry": "Each of these jobs goes back to the queue with one more attempt.",
    "cancel": "Each of these jobs is cancelled; running ones are asked to stop.",
    "recover": "Each of these jobs is taken from a worker whose lease has expired, and goes back to the queue.",
}
TYPED_ABOVE = 100  # jobs: the count must be typed
PREVIEW = "dry run in the console"


async def ask(request: Request) -> Response:
    """Show what the action would change now: the jobs of a filter, or those whose boxes are checked."""
    given = request.query_params
    chosen = given.getlist("job")
    return await _page(request, given.get("action", ""), f"id:{','.join(chosen)}" if chosen else given.get("f", ""), "")


async def run(request: Request) -> Response:
    """Start the action, if no more jobs match than the page showed."""
    form = await read_form(request)
    verb, text, reason = form.get("action", ""), form.get("f", ""), form.get("reason", "").strip()
    expected = form.get("expected_count", "")
    if not expected.isdecimal():
        raise Problem("invalid-request", "expected_count is missing; open the page again")
    if not reason:
        return await _page(request, verb, text, "A reason is required; it is recorded in the audit log.", status=422)
    if int(expected) > TYPED_ABOVE and form.get("typed", "").replace(",", "").strip() != expected:
        return await _page(request, verb, text, f"Type {expected} to confirm the number of jobs.", status=422)
    fields = {"reason": reason, "dry_run": False, "expected_count": int(expected)}
    reply = await _send(request, verb, text, await _frame(request), fields)
    if reply.is_refusal:
        return await _page(request, verb, text, reply.sentence, status=409)
    response = RedirectResponse(link(request, f"jobs/{reply.data['id']}"), 303)
    said = f"Started: {verb} for {reply.data['matched']:,} jobs. This job shows the progress."
    leave_note(response, request, target=f"job/{reply.data['id']}", text=said, refused=False)
    return response


async def _page(request: Request, verb: str, text: str, problem: str, *, status: int = 200) -> Response:
    if verb not in VERBS:
        raise Problem("invalid-request", f"no bulk action {verb!r}; there are: {', '.join(VERBS)}")
    frame = await _frame(request)
    seen = await _send(request, verb, text, frame, {"reason": PREVIEW, "dry_run": True})
    values = {
        "verb": verb,
        "says": VERBS[verb],
        "filter": text,
        "selected": len(parse(text, frame.now).values.get("ids", "").split(",")) if text.startswith("id:") else 0,
        "seen": None if seen.is_refusal else seen.data,
        "problem": problem or (seen.sentence if seen.is_refusal else ""),
        "typed_above": TYPED_ABOVE,
    }
    renderer: Renderer = request.app.state.renderer
    return renderer.page(
        request,
        "bulk.html",
        values,
        title=f"{verb.capitalize()} many jobs",
        caller=request.state.caller,
        frame=frame,
        status=seen.status if seen.is_refusal and not problem else status,
    )


async def _frame(request: Request) -> Frame:
    async with plane_of(request).pool.connection() as conn:
        return await read_frame(conn)


async def _send(request: Request, verb: str, text: str, frame: Frame, fields: Mapping[str, Any]) -> Reply:
    found = parse(text, frame.now)
    _refuse_search(found)
    return await call(request, "POST", "/api/jobs/bulk", {"action": verb, "filter": for_query(found), **fields})


def _refuse_search(found: Filter) -> None:
    if "q" in found.values:
        raise Problem(
            "invalid-request",
            f"a bulk action cannot use a text search ({found.values['q']!r}), because it covers only the newest jobs; use "
            "filters such as state:failed kind:…",
        )
