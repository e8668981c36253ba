"""Make typed objects out of answers. Fields that a newer server adds are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, TypeVar

T = TypeVar("T")


def record(cls: type[T], data: Mapping[str, Any], **more: Any) -> T:
    """An object of this dataclass; times become `datetime`. Pure."""
    names = [field.name for field in fields(cls) if field.init]  # type: ignore[arg-type]
    found = {name: _value(name, data.get(name)) for name in names if name not in more}
    return cls(**found, **more)


def _value(name: str, value: Any) -> Any:
    is_time = name.endswith("_at") or name == "run_after"
    return datetime.fromisoformat(value) if is_time and isinstance(value, str) else value
