"""Values as plain text. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib import import_module
from typing import Any

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
UNLIMITED = 100_000  # columns; a terminal wraps the lines


def leaves(data: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """The values of nested data with the path of each: jobs.pending, workers.0.name."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(data, list) and data:
        for number, value in enumerate(data):
            yield from leaves(value, f"{name}.{number}")
    else:
        yield name, data


def raw(value: Any) -> str:
    """A value as a program wants it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def spread(value: Any) -> str:
    """A value over several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False) if isinstance(value, dict | list) else raw(value)


def plain(text: str) -> str:
    """Text without control characters."""
    return CONTROL.sub("�", text)


def flat(text: str) -> str:
    """Text on one line and in one column."""
    return plain(" ".join(text.split()) if any(c in text for c in "\t\n\r") else text)


def yaml_of(data: Any) -> str:
    text: str = import_module("yaml").safe_dump(data, sort_keys=False, allow_unicode=True, width=UNLIMITED)
    return text.removesuffix("\n")
