"""Keyset pagination: a cursor contains the last key of a page, and is signed so that it cannot be forged.

A cursor is valid for one list with one set of filters; with others it is refused.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Query, Request
from starlette.responses import JSONResponse, Response

from holdfast.api.bodies import BIGGEST_ID, JobNumber
from holdfast.api.envelope import jsonable
from holdfast.api.plane import plane_of
from holdfast.api.problems import Problem

LONGEST = 200


class Pages:
    """The page that a request selects."""

    def __init__(
        self,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=LONGEST)] = 50,
        cursor: Annotated[str | None, Query(max_length=1000)] = None,
    ) -> None:
        self.request, self.limit = request, limit
        self._key = plane_of(request).cursor_key
        asked = sorted((name, value) for name, value in request.query_params.multi_items() if name not in ("limit", "cursor"))
        self._list = f"{request.url.path}?{urlencode(asked)}"
        self.after: Any = None if cursor is None else self._open(cursor)

    def answer(self, items: Sequence[Any], next_key: Any, total: Any = None) -> Response:
        """The page, with the link to the next one."""
        cursor = None if next_key is None else self._seal(next_key)
        page = {"limit": self.limit, "next_cursor": cursor, "total": total}
        headers = {} if cursor is None else {"Link": f'<{self._address(cursor)}>; rel="next"'}
        return JSONResponse({"data": jsonable(list(items)), "page": page}, headers=headers)

    def _address(self, cursor: str) -> str:
        return f"{self._list}{'' if self._list.endswith('?') else '&'}{urlencode({'limit': self.limit, 'cursor': cursor})}"

    def _seal(self, key: Any) -> str:
        text = json.dumps(key, separators=(",", ":")).encode()
        return f"{_encoded(text)}.{_encoded(self._signature(text))}"

    def _open(self, cursor: str) -> Any:
        try:
            text, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in cursor.split("."))
        except (ValueError, binascii.Error):
            raise Problem("invalid-cursor", "this is not a cursor") from None
        if not hmac.compare_digest(signature, self._signature(text)):
            raise Problem("invalid-cursor", "this cursor belongs to another list or filter, or its signature is invalid")
        return json.loads(text)

    def _signature(self, text: bytes) -> bytes:
        return hmac.digest(self._key, self._list.encode() + b"\n" + text, sha256)[:16]


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


Paged = Annotated[Pages, Depends(Pages)]
__all__ = ["BIGGEST_ID", "LONGEST", "JobNumber", "Paged", "Pages"]
