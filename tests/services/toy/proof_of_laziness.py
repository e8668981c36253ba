"""Which heavy packages a process has imported."""

from __future__ import annotations

import sys

HEAVY = ("alembic", "duckdb", "fastapi", "httpx2", "psycopg", "pyarrow", "pydantic", "sqlglot", "typer")


def loaded() -> list[str]:
    return [name for name in HEAVY if name in sys.modules]
