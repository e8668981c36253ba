"""DuckDB types that Arrow does not have, and the types that the query casts them to. Pure.

All other types are converted to Arrow unchanged. A value that does not fit its new type fails the query.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.engines.duckdb.sandbox import identifier

CARRIED_AS: Final[dict[str, str]] = {
    "hugeint": "DECIMAL(38,0)",
    "uhugeint": "DECIMAL(38,0)",
    "bignum": "VARCHAR",
    "time with time zone": "VARCHAR",
    "bit": "VARCHAR",
}


def cast_for(kind: Any) -> str | None:
    """The SQL type to cast a column to before it is converted to Arrow; None if no cast is needed."""
    carried = CARRIED_AS.get(kind.id)
    if carried is not None:
        return carried
    if kind.id not in ("list", "array", "struct", "map", "union"):
        return None
    children = kind.children
    casts = {name: cast_for(child) for name, child in children if not isinstance(child, int)}
    if not any(casts.values()):
        return None
    inside = {name: casts[name] or str(child) for name, child in children if not isinstance(child, int)}
    if kind.id in ("struct", "union"):
        fields = ", ".join(f"{identifier(name)} {type_}" for name, type_ in inside.items())
        return f"{kind.id.upper()}({fields})"
    if kind.id == "map":
        return f"MAP({inside['key']}, {inside['value']})"
    return f"{inside['child']}[{dict(children).get('size', '')}]"
