"""Identifiers and SELECT lists, written the same way for every engine. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import UsageError


def quoted(name: str) -> str:
    """A quoted identifier in standard SQL. Names with quotes are refused rather than escaped: no mapping has them."""
    if '"' in name or "\x00" in name:
        raise UsageError(f"{name!r} is not a valid identifier")
    return f'"{name}"'


def select_columns(sql: str, columns: Sequence[str]) -> str:
    """The SELECT reduced to these columns, in this order. The line break ends a comment at the end of `sql`."""
    return f"SELECT {', '.join(map(quoted, columns))} FROM (\n{sql.rstrip().rstrip(';')}\n) AS {quoted('export')}"
