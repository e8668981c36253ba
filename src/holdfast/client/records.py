"""Answers as values with names. What a newer server says beyond them is kept out of the way, and nothing breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, TypeVar

T = TypeVar("T")


def record(cls: type[T], data: Mapping[str, Any], **more: Any) -> T:
    """A value of this class from an answer; times become times. Pure."""
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    found = {name: _value(name, data.get(name)) for name in names}
    return cls(**found | more)


def _value(name: str, value: Any) -> Any:
    return datetime.fromisoformat(value) if name.endswith("_at") and isinstance(value, str) else value
