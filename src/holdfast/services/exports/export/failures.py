"""How errors of engines and stores end an export, the same for `exports.run` and `exports.export`."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import Final, TypeVar

from holdfast.engines.port import EngineError, MissingRole
from holdfast.errors import UsageError
from holdfast.jobs.outcome import DEFAULT_POLICY, Backoff, Fail, RetryPolicy, Snooze
from holdfast.services.exports.export.direct import ExportFailed
from holdfast.services.exports.export.turns import NoTurn
from holdfast.stores.port import StoreError

T = TypeVar("T")
RETRY_POLICY: Final = RetryPolicy(Backoff(first=timedelta(seconds=5)), permanent=DEFAULT_POLICY.permanent)


async def outcome_of(work: Awaitable[T]) -> T | Fail | Snooze:
    """What the work returns, or the outcome that its error means. Transient errors are raised: `RETRY_POLICY` retries them."""
    try:
        return await work
    except NoTurn as busy:
        return busy.snooze
    except (EngineError, StoreError) as error:
        if error.transient:
            raise
        return Fail(message_of(error))
    except (ExportFailed, UsageError) as failed:  # another attempt fails as well
        return Fail(str(failed))


def message_of(error: EngineError | StoreError) -> str:
    """The error with its stable code. The message for a missing role is given by the documents, so it has no code. Pure."""
    return str(error) if isinstance(error, MissingRole) else f"{error.code}: {error}"
