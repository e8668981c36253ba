"""Upload a file: a plain form, sent to the routes of the API as the caller. A refusal is shown next to the form.

If the file is stored but its job is refused, the form comes back with the id of the file, and nobody uploads it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.console.api_call import Reply, call, send_stream
from holdfast.console.render import leave_note
from holdfast.console.view import Shown, View, link
from holdfast.errors import NotFound
from holdfast.services.ingestion.api.dependencies import ingestion_of
from holdfast.services.ingestion.loading.entries import Mode
from holdfast.services.ingestion.models import store
from holdfast.services.ingestion.pages.upload_form import read_form
from holdfast.services.ingestion.sources import files

TARGET: Final = "upload"
ROUTES: Final = {"entries": "/api/ingestion/dispatch", "factors": "/api/ingestion/factors", "units": "/api/ingestion/units"}
KEPT: Final = ("what", "type", "year", "mode", "dry_run")  # fields that come back with a refusal
LONGEST: Final = 100


async def show(view: View) -> Shown:
    """The form, with what was chosen before it was refused."""
    here = ingestion_of(view.request)
    types, file = list[str](), None
    with suppress(NotFound):  # the form says so
        types = [f"{module.name}/{det.name}" for module, det in (await store.get(view.conn, here.model)).model.types()]
    with suppress(NotFound):  # the file has to be chosen again
        file = await files.get(view.conn, file_id) if (file_id := view.number("file_id")) else None
    values = {
        "types": types,
        "model": here.model,
        "modes": get_args(Mode),
        "form": {name: view.given(name) for name in KEPT},
        "file": file,
        "year": view.given("year") or view.now.year,
        "largest": here.largest_upload,
        "action": view.link("ingestion/upload"),
    }
    return Shown("upload.html", values)


async def take(request: Request) -> Response:
    """Store the file, start its job, and go to the page of the job."""
    form = await read_form(request)
    problem = problem_of(form.fields, form.has_file)
    if problem:
        return _refused(request, form.fields, problem)
    file_id = form.fields.get("file_id", "")
    if form.has_file:
        stored = await send_stream(request, "/api/ingestion/files", form.body(), request.headers["content-type"])
        if stored.is_refusal:
            return _refused(request, form.fields, _sentence(stored))
        file_id = str(stored.data["id"])
    asked = asked_of(form.fields)
    reply = await call(request, "POST", ROUTES[form.fields["what"]], {**asked, "file_id": int(file_id)})
    if reply.is_refusal:
        return _refused(request, {**form.fields, "file_id": file_id}, _sentence(reply))
    response = RedirectResponse(link(request, f"ingestion/{reply.data['job_id']}"), 303)
    leave_note(response, request, target=TARGET, text="The file was uploaded, and its job was started.", refused=False)
    return response


def problem_of(fields: Mapping[str, str], has_file: bool) -> str:
    """What the form lacks, as a sentence. Pure."""
    if fields.get("what") not in ROUTES:
        return "Choose what the file has: data entries, factors or units."
    if not (fields.get("year", "").isdecimal() and len(fields["year"]) == 4):
        return "The year must be a number such as 2026."
    if fields["what"] != "units" and "/" not in fields.get("type", ""):
        return "Choose a data entry type."
    if not has_file and not (fields.get("file_id", "").isdecimal() and len(fields["file_id"]) < 19):
        return "Choose a file."
    return ""


def asked_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """The request for the API, without the file. Pure."""
    asked: dict[str, Any] = {"year": int(fields["year"]), "dry_run": bool(fields.get("dry_run"))}
    if fields["what"] != "units":
        asked["module"], _, asked["det"] = fields["type"].partition("/")
    if fields["what"] == "entries":
        asked["mode"] = fields.get("mode") or "append"
    return asked


def _sentence(reply: Reply) -> str:
    """Why it was refused, with the first field that is wrong."""
    wrong = reply.body.get("errors") or []
    return f"{reply.sentence} {wrong[0]['pointer']}: {wrong[0]['message']}" if wrong else reply.sentence


def _refused(request: Request, fields: Mapping[str, str], problem: str) -> Response:
    """Back to the form, with its values."""
    kept = {name: fields.get(name, "")[:LONGEST] for name in (*KEPT, "file_id")}
    response = RedirectResponse(link(request, "ingestion/upload", **kept), 303)
    leave_note(response, request, target=TARGET, text=problem, refused=True)
    return response
