"""One job, top to bottom: arguments, handler, outcome. Called by: the worker's lanes and the testing helpers."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from typing import Any

from holdfast.crashpoints import crashpoint
from holdfast.errors import ClaimLost
from holdfast.jobs.model import Claim
from holdfast.jobs.outcome import Done, End, decide
from holdfast.worker.context import Context, SyncContext
from holdfast.worker.kinds import Job
from holdfast.worker.threads import in_thread, leave_if_forked

MakeContext = Callable[[Claim], Context]


async def execute(kind: Job[..., Any], claim: Claim, make_context: MakeContext) -> End:
    """Run the handler of a claimed job and say how the attempt ends. `ClaimLost` passes through: nothing is to be written."""
    context = make_context(claim) if kind.context_name is not None or not kind.is_async else None
    ours = os.getpid()
    crashpoint("run.before_start")
    try:
        ended_with = await _call(kind, claim, context)
    except ClaimLost:
        raise
    except (Exception, SystemExit) as error:  # foreign code: whatever it raises is an outcome
        ended_with = error
    finally:
        leave_if_forked(ours)
    crashpoint("run.after")
    if claim.is_poll:
        crashpoint("poll.after_reply_before_persist")
    if context is not None and (context.children or context.join is not None):
        ended_with = _with_children(ended_with, context)
    return decide(claim, ended_with, kind.policy.retry)


async def _call(kind: Job[..., Any], claim: Claim, context: Context | None) -> object:
    arguments = kind.arguments(claim.payload)
    if kind.is_async:
        if kind.context_name is not None:
            arguments[kind.context_name] = context
        if claim.max_runtime is None:
            return await kind.function(**arguments)
        async with asyncio.timeout(claim.max_runtime.total_seconds()):
            return await kind.function(**arguments)
    assert context is not None
    loop = asyncio.get_running_loop()
    if kind.context_name is not None:
        arguments[kind.context_name] = SyncContext(context, loop)
    running = in_thread(functools.partial(kind.function, **arguments))
    # A thread cannot be stopped from outside; it learns of its end at its next checkpoint, or at its refused finish.
    timeout = claim.max_runtime.total_seconds() if claim.max_runtime else None
    return await asyncio.wait_for(running, timeout)


def _with_children(ended_with: object, context: Context) -> object:
    """Children that were named through the context follow a completion; any other end has none."""
    match ended_with:
        case Done(result, publish, then, join):
            return Done(result, publish, (*then, *context.children), join or context.join)
        case BaseException():
            return ended_with
        case None:
            return Done(then=tuple(context.children), join=context.join)
        case _ if not hasattr(ended_with, "__dataclass_fields__"):
            return Done(ended_with, then=tuple(context.children), join=context.join)
        case _:
            return ended_with
