"""The style sheet, the scripts and the icon, from this package. Their addresses contain a hash, so browsers keep them."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.problems import Problem

FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "theme.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
KEPT: Final = "public, max-age=31536000, immutable"


@cache
def content_of(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@cache
def address_of(name: str) -> str:
    """The start of the file's hash, for its address."""
    return sha256(content_of(name)).hexdigest()[:12]


async def serve_file(request: Request) -> Response:
    """One file of the list above; nothing else can be read."""
    name = str(request.path_params["name"])
    if name not in TYPES:
        raise Problem("not-found", f"there is no file {name!r}")
    return Response(content_of(name), media_type=TYPES[name], headers={"Cache-Control": KEPT})
