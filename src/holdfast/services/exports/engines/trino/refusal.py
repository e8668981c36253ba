"""An error of Trino as one of ours: by its name and type, which are stable, and never by words in its message."""

from __future__ import annotations

from holdfast.services.exports.engines.port import (
    EngineError,
    EngineLost,
    EngineUnavailable,
    FunctionMissing,
    QueryRefused,
    RanTooLong,
)
from holdfast.services.exports.engines.trino.messages import Failure

LONGEST = 2000  # characters of a message: some quote the whole query
TOO_LONG = frozenset({"EXCEEDED_TIME_LIMIT"})
LET_GO = frozenset({"ABANDONED_QUERY", "ABANDONED_TASK"})


def refusal(failure: Failure, query_id: str | None = None) -> EngineError:
    """Which of our errors this is. What is not the user's fault is worth another try."""
    message = f"{failure.error_name or 'unknown error'}: {failure.message[:LONGEST]}"
    detail = {"query_id": query_id, "engine_error": failure.error_name, "engine_error_type": failure.error_type}
    if failure.error_name == "FUNCTION_NOT_FOUND":
        return FunctionMissing(message, **detail)
    if failure.error_name in TOO_LONG:
        return RanTooLong(message, **detail)
    if failure.error_name in LET_GO:
        return EngineLost(message, **detail)
    if failure.error_type == "USER_ERROR":
        return QueryRefused(message, **detail)
    return EngineUnavailable(message, **detail)
