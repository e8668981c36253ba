"""What the tests of the HTTP API share: options that nobody runs into by being quick."""

from __future__ import annotations

from datetime import timedelta

from holdfast.api.plane import ApiOptions

GENEROUS = ApiOptions(version="test", per_minute=1_000_000, burst=1_000_000, poll=timedelta(milliseconds=50))
