"""Templates: the Jinja2 environment, and a page as a whole document or as a fragment. Needs the extra `console`.

Every value is escaped; a template cannot switch that off by accident, because no template uses `safe`. A request with the
header `X-Fragment` gets the body of the page without its frame: a live region reads its own page again that way.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from holdfast.api.plane import Plane, Principal
from holdfast.api.sessions import SESSION
from holdfast.console import formats
from holdfast.console.actions import Action
from holdfast.console.static_files import address_of
from holdfast.console.view import link, own_path, root_of
from holdfast.console.views.frame import Frame
from holdfast.console.views.kinds import waiting_text
from holdfast.extras import loaded

if TYPE_CHECKING:
    import jinja2

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
# With `no-referrer` a browser would send forms with `Origin: null`, which is refused.
HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin", "Vary": "X-Fragment, Cookie"}
POLL = 5_000  # milliseconds between two reads where no event stream is used
NOTE = "holdfast_note"  # a cookie for one page: what became of the action before it


@dataclass(frozen=True, slots=True)
class NavEntry:
    """A page in the navigation."""

    path: str
    title: str
    section: str
    action: str


@dataclass(frozen=True, slots=True)
class Renderer:
    """Makes documents of templates."""

    env: jinja2.Environment
    nav: Sequence[NavEntry]
    actions: Mapping[str, Action]
    links: Mapping[str, str] = field(default_factory=dict)  # external links of a job by name, with {job_id}, {kind}, …
    signs_in: bool = True  # False: the surrounding application does

    def page(
        self,
        request: Request,
        template: str,
        values: Mapping[str, Any],
        *,
        title: str,
        caller: Principal | None = None,
        frame: Frame | None = None,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """The response with this template."""
        note, back = note_of(request), urlencode({"back": address_of_page(request)})
        context = {
            **values,
            "title": title,
            "caller": caller,
            "frame": frame,
            "now": None if frame is None else frame.now,
            "root": root_of(request),
            "here": f"/{own_path(request)}",
            "address": address_of_page(request),
            "note": note,
            "nav": self._nav(request, caller),
            "signs_in": self.signs_in,
            "poll": 0 if self.signs_in else POLL,
            "layout": "bare.html" if "x-fragment" in request.headers else "layout.html",
            "link": lambda path="", **query: link(request, path, **query),
            "static": lambda name: link(request, f"static/{name}", v=address_of(name)),
            "act": lambda name, /, *, off="", label="", **given: self._button(request, caller, name, off, label, given, back),
            "may": (lambda action: False) if caller is None else caller.may,
            "csrf": "" if caller is None else csrf_of(request, caller),
            "ago": formats.clock if frame is None else (lambda at: formats.ago(at, frame.now)),
        }
        response = HTMLResponse(self.env.get_template(template).render(context), status, {**HEADERS, **(headers or {})})
        if NOTE in request.cookies and "x-fragment" not in request.headers:
            _keep_note(response, request, note)
        return response

    def _nav(self, request: Request, caller: Principal | None) -> list[tuple[str, list[dict[str, Any]]]]:
        """The sections of the navigation, with the pages that the caller may open."""
        own, found = own_path(request), dict[str, list[dict[str, Any]]]()
        for entry in self.nav:
            if caller is None or not caller.may(entry.action):
                continue
            is_here = own == entry.path or (bool(entry.path) and own.startswith(f"{entry.path}/"))
            one = {"title": entry.title, "href": link(request, entry.path), "is_here": is_here, "path": entry.path}
            found.setdefault(entry.section, []).append(one)
        return list(found.items())

    def _button(
        self,
        request: Request,
        caller: Principal | None,
        name: str,
        off: str,
        label: str,
        given: Mapping[str, Any],
        back: str,
    ) -> Markup:
        """The button of an action; nothing without the permission. `off` says why it is not possible now; `back` is encoded."""
        action = self.actions[name]
        if caller is None or not caller.may(action.policy):
            return Markup("")
        text = label or action.label
        if off:
            return Markup('<span class="button off" aria-disabled="true" title="{}">{}</span>').format(off, text)
        query = f"{urlencode(given)}&{back}" if given else back
        tone = "button danger" if action.danger else "button"
        of = escape(" ".join(map(str, given.values())))
        address = f"{root_of(request)}/act/{name}?{query}"
        return Markup(  # noqa: S704 - every part is escaped
            f'<a class="{tone}" href="{escape(address)}" data-dialog>{escape(text)}<span class="hidden"> {of}</span></a>'
        )


def address_of_page(request: Request) -> str:
    """The path and the query of a request."""
    return f"{request.url.path}?{request.url.query}" if request.url.query else str(request.url.path)


def environment(folders: Mapping[str, Path]) -> jinja2.Environment:
    """The templates of the console, and those of each service under the service's name."""
    jinja = loaded("jinja2", extra="console")
    own = jinja.FileSystemLoader(Path(__file__).parent / "templates")
    services = {name: jinja.FileSystemLoader(folder) for name, folder in folders.items()}
    env: jinja2.Environment = jinja.Environment(
        loader=jinja.ChoiceLoader([own, jinja.PrefixLoader(services)]),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "badge": formats.badge,
        "clock": formats.clock,
        "span": formats.span,
        "number": formats.number,
        "size": formats.size,
        "percent": formats.percent,
        "short": formats.short,
        "safe_json": formats.safe_json,
        "fields_line": formats.fields_line,
        "spark": formats.spark,
        "waiting": waiting_text,
        "quoted": lambda text: quote(str(text), safe=""),
    }
    return env


# ---------------------------------------------------------------------------------------------------------------------
# One note for the next page, and the token of a form
# ---------------------------------------------------------------------------------------------------------------------


def leave_note(response: Response, request: Request, *, target: str, text: str, refused: bool) -> None:
    """Show this text on the next page; a refusal next to the row of its target."""
    _set_note(response, request, [target, text[:1500], refused, ""])


def note_of(request: Request) -> dict[str, Any] | None:
    """The note that the last action left: on the first page after it, and in the live regions of this page, not on the next."""
    try:
        target, text, refused, shown_on = json.loads(base64.urlsafe_b64decode(request.cookies[NOTE]))
    except (KeyError, ValueError, TypeError, binascii.Error):
        return None
    is_due = shown_on == str(request.url.path) if "x-fragment" in request.headers else shown_on == ""
    return {"target": str(target), "text": str(text), "refused": bool(refused)} if is_due else None


def _keep_note(response: Response, request: Request, note: Mapping[str, Any] | None) -> None:
    """Keep a note for the live regions of the page that shows it; they are read again within seconds."""
    if note is None:
        response.delete_cookie(NOTE, path=root_of(request) or "/")
    else:
        _set_note(response, request, [note["target"], note["text"], note["refused"], str(request.url.path)])


def _set_note(response: Response, request: Request, values: list[Any]) -> None:
    said, secure = base64.urlsafe_b64encode(json.dumps(values).encode()).decode(), request.url.scheme == "https"
    response.set_cookie(NOTE, said, max_age=60, path=root_of(request) or "/", httponly=True, samesite="lax", secure=secure)


def csrf_of(request: Request, caller: Principal) -> str:
    """The token of the forms of this caller and this session: another site cannot know it."""
    plane: Plane = request.app.state.plane
    said = f"console form\n{caller.actor}\n{request.cookies.get(SESSION, '')}"
    return hmac.digest(plane.cursor_key, said.encode(), sha256).hex()[:40]
