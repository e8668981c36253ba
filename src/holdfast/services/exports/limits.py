"""Limits that several parts of exports share."""

from __future__ import annotations

from typing import Final

MAX_DURATION: Final = "export.max_duration_seconds"  # in the runtime configuration: how long any export may take
LONGEST_SQL: Final = 40_000  # characters of one query; sqlglot parses about 100,000 in a second
DESCRIBE_SECONDS: Final = 15.0  # for an engine to describe the columns of one query
