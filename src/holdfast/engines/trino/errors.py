"""Convert an error of Trino to an error of engines, by its name and type. They are stable; the message is not parsed."""

from __future__ import annotations

from holdfast.engines.port import (
    EngineError,
    EngineLost,
    EngineUnavailable,
    FunctionMissing,
    QueryRefused,
    RanTooLong,
)
from holdfast.engines.trino.messages import Failure

LONGEST = 2000  # characters of a message: some quote the whole query
TOO_LONG = frozenset({"EXCEEDED_TIME_LIMIT"})
ABANDONED = frozenset({"ABANDONED_QUERY", "ABANDONED_TASK"})


def error_of(failure: Failure, query_id: str | None = None) -> EngineError:
    """Return the error for a failed query. Errors that the user did not cause are retried."""
    message = f"{failure.error_name or 'unknown error'}: {failure.message[:LONGEST]}"
    detail = {"query_id": query_id, "engine_error": failure.error_name, "engine_error_type": failure.error_type}
    if failure.error_name == "FUNCTION_NOT_FOUND":
        return FunctionMissing(message, **detail)
    if failure.error_name in TOO_LONG:
        return RanTooLong(message, **detail)
    if failure.error_name in ABANDONED:
        return EngineLost(message, **detail)
    if failure.error_type == "USER_ERROR":
        return QueryRefused(message, **detail)
    return EngineUnavailable(message, **detail)
