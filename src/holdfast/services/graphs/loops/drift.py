"""Compare what the runtime has with what the database says: orphans, missing graph servers, status drift. Pure.

The runtime was listed before the instances were read. So an object whose instance is not there has certainly no instance; but
an instance whose object is not there may be younger than the list, which is why age and a second look decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from holdfast.errors import HoldfastError
from holdfast.services.graphs.instances.moving import Moved
from holdfast.services.graphs.runtimes.interface import ErrorCode, Observed
from holdfast.services.graphs.states import MOVING, InstanceState

S = InstanceState
BREAKER_LEAST: Final = 20  # fewer findings than this never stop a pass
BREAKER_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with an instance."""

    kind: Literal["missing", "drift"]
    code: ErrorCode
    message: str


def judge(one: Moved, seen: Observed | None, *, listed_at: datetime, min_age: timedelta) -> Finding | None:
    """What is wrong with an instance, by what the runtime has of it."""
    instance = one.instance
    is_its_own = seen is not None and seen.start_token == instance.start_token
    if instance.status in MOVING and one.job_is_live:
        return None  # its job looks after it
    if instance.status not in (*MOVING, S.RUNNING):
        return None
    if seen is not None and is_its_own:
        if seen.phase != "failed":
            return None
        code: ErrorCode = "OOM_KILLED" if seen.oom else "UNEXPECTED_TERMINATION"
        return Finding("drift", code, f"Graph server {seen.name or instance.runtime_name} is in phase Failed: {seen.message}")
    if instance.status in MOVING or instance.state_since > listed_at - min_age:
        return None  # the loop instance_orchestration starts it again; or it is too young to be in the list
    return Finding("missing", "UNEXPECTED_TERMINATION", f"Graph server {instance.runtime_name} is not there any more")


def is_orphan(seen: Observed, one: Moved | None, *, listed_at: datetime, min_age: timedelta) -> bool:
    """Whether no instance has this object, and it is old enough for that to be certain."""
    if seen.phase == "stopping" or seen.created_at > listed_at - min_age:
        return False
    if one is None:
        return True
    if one.job_is_live or one.instance.status is S.STOPPING:
        return False  # its job removes or replaces what is left
    if seen.start_token != one.instance.start_token:
        return True
    return one.instance.status in (S.SUSPENDED, S.FAILED, S.WAITING_FOR_SNAPSHOT) and seen.phase != "failed"


class TooManyFindings(HoldfastError):
    """A pass would fail or remove more than half of everything. A wrong list is more likely."""

    def __init__(self, what: str, found: int, total: int) -> None:
        super().__init__(
            f"{found} of {total} {what}, which is more than {BREAKER_SHARE:.0%}; nothing was changed. Check that the runtime "
            "and the database belong together; if they do, run the loop by hand: "
            "holdfast periodic run reconciliation --reason …"
        )


def refuse_too_many(what: str, found: int, total: int, *, is_manual: bool) -> None:
    """The circuit breaker of a scheduled pass. It does not apply to runs that an operator triggered with a reason."""
    if not is_manual and found >= BREAKER_LEAST and found > total * BREAKER_SHARE:
        raise TooManyFindings(what, found, total)
