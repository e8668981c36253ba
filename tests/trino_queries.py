"""What tests of the Trino engine ask."""

from __future__ import annotations

from typing import Any

from holdfast.engines.port import Query


def asking(sql: str = "SELECT 1", **more: Any) -> Query:
    """A query of one attempt."""
    return Query(sql, **{"tag": "job-7-attempt-abc", "role": "analysts", **more})
