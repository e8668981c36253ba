"""The answer of an action, as plain JSON values, and the ETag that a caller may require. Without a web framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pydantic_core import to_json, to_jsonable_python

from holdfast.api.asked import Asked
from holdfast.api.problems import Problem


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of an action. `shown_once` is part of the response but never stored, so it cannot be replayed."""

    status: int
    data: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    shown_once: Mapping[str, Any] = field(default_factory=dict)


def jsonable(value: Any) -> Any:
    """Plain JSON values for dataclasses, named tuples and times."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, list):
        value = [item._asdict() if hasattr(item, "_asdict") else item for item in value]
    return to_jsonable_python(value)


def etag_of(value: Any) -> str:
    """The ETag of a value."""
    return f'"{sha256(to_json(value)).hexdigest()[:32]}"'


def require_match(request: Asked, tag: str) -> None:
    """Refuse a write whose If-Match does not have the current ETag. Without If-Match, the write is accepted."""
    given = request.headers.get("if-match")
    if given is not None and given.strip() != "*" and tag not in tags(given):
        raise Problem(
            "changed-meanwhile", "the object has changed: If-Match does not have the current ETag", headers={"ETag": tag}
        )


def tags(header: str | None) -> set[str]:
    return {part.strip().removeprefix("W/") for part in (header or "").split(",")}
