"""Periodic jobs and loops, whether the system drains, and the facts for `doctor` and `status`."""

from __future__ import annotations

from holdfast.api.answers import jsonable
from holdfast.api.live_tokens import has_live_tokens
from holdfast.cli.reads.values import Conn, Params, parsed
from holdfast.jobs import control
from holdfast.jobs.periodic.read import list_periodic, periodic_fields
from holdfast.jobs.views.checkup import check_up
from holdfast.schedule.read import list_loops, loop_fields
from holdfast.toolkit.cli.transport import Answer


async def loops(conn: Conn, params: Params) -> Answer:
    parsed(params)
    jobs = [periodic_fields(job) for job in await list_periodic(conn)]
    return Answer(jsonable([*jobs, *(loop_fields(loop) for loop in await list_loops(conn))]))


async def drain(conn: Conn, params: Params) -> Answer:
    parsed(params)
    controls = await control.controls(conn)
    found = next((one for one in controls if one.kind == control.EVERYTHING and one.drained), None)
    return Answer({"enabled": found is not None, "reason": found and found.reason, "actor": found and found.actor})


async def facts(conn: Conn, params: Params) -> Answer:
    parsed(params)
    found = await check_up(conn)
    fields = {name: getattr(found, name) for name in found.__dataclass_fields__}
    return Answer(jsonable({"version": "command line", "knows_somebody": await has_live_tokens(conn), **fields}))
