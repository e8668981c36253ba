"""The form of an upload, as a browser sends it without a script: multipart/form-data, its fields first and the file last.

Only the fields are kept in memory. The file is passed on as it arrives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request

from holdfast.api.problems import Problem
from holdfast.console.render import csrf_of
from holdfast.extras import lazily
from holdfast.services.ingestion.sources.uploads import FIELD

multipart: Any = lazily("python_multipart.multipart")

LARGEST: Final = 64 * 1024  # bytes before the file
FOREIGN: Final = "this form does not belong to your session; open the page again and choose the file again"


@dataclass(slots=True)
class Form:
    """The fields before the file, and the whole body: what was read of it, and the rest."""

    rest: AsyncIterator[bytes]
    fields: dict[str, str] = field(default_factory=dict)
    has_file: bool = False
    read: list[bytes] = field(default_factory=list)

    async def body(self) -> AsyncIterator[bytes]:
        """The body from its beginning."""
        for piece in self.read:
            yield piece
        async for piece in self.rest:
            yield piece


async def read_form(request: Request) -> Form:
    """Read a form of this console up to its file. It must have the token of the caller before the file."""
    form = Form(request.stream())
    parser = _parser(request.headers.get("content-type", ""), form)
    try:
        while not form.has_file and (piece := await anext(form.rest, None)) is not None:
            form.read.append(piece)
            parser.write(piece)
            if not form.has_file and sum(map(len, form.read)) > LARGEST:
                raise Problem("too-large", f"the fields before the file must have at most {LARGEST:,} bytes", largest=LARGEST)
    except multipart.FormParserError as error:
        raise Problem("unreadable", f"this is not a form: {error}") from None
    if form.fields.get("csrf") != csrf_of(request, request.state.caller):
        raise Problem("cross-origin", FOREIGN)
    return form


def _parser(content_type: str, form: Form) -> Any:
    kind, options = multipart.parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise Problem("unreadable", "this is not a form with a file: send multipart/form-data")
    header, headers, name = [b"", b""], dict[bytes, bytes](), [""]

    def on_header(data: bytes, start: int, end: int, *, part: int) -> None:
        header[part] += data[start:end]

    def on_header_end() -> None:
        headers[header[0].lower()] = header[1]
        header[:] = b"", b""

    def on_headers() -> None:
        _, said = multipart.parse_options_header(headers.get(b"content-disposition", b""))
        name[0] = said.get(b"name", b"").decode("utf-8", "replace")
        form.has_file = form.has_file or (name[0] == FIELD and bool(said.get(b"filename")))
        headers.clear()

    def on_data(data: bytes, start: int, end: int) -> None:
        if not form.has_file and name[0] != FIELD:  # what comes after the file is not part of the form
            form.fields[name[0]] = form.fields.get(name[0], "") + data[start:end].decode("utf-8", "replace")

    callbacks = {
        "on_header_field": lambda *piece: on_header(*piece, part=0),
        "on_header_value": lambda *piece: on_header(*piece, part=1),
        "on_header_end": on_header_end,
        "on_headers_finished": on_headers,
        "on_part_data": on_data,
    }
    return multipart.MultipartParser(boundary, callbacks)
