"""Workers and kinds."""

from __future__ import annotations

from holdfast.api.answers import jsonable
from holdfast.cli.reads.values import PAGE, Conn, NotHandled, Params, page_of, parsed, uuid_of
from holdfast.jobs.views.workers import get_worker, list_kinds, list_workers
from holdfast.toolkit.cli.transport import Answer


async def listed(conn: Conn, params: Params) -> Answer:
    given = parsed(params, **PAGE, alive=str)
    if given["alive"] not in (None, "true", "false", "True", "False"):
        raise NotHandled
    limit = given["limit"] or 50
    alive = given["alive"] in ("true", "True")
    found = await list_workers(conn, alive=alive, after=given["cursor"], limit=limit + 1)
    return page_of(found, limit, lambda worker: worker.id)


async def one(conn: Conn, params: Params, worker_id: str) -> Answer:
    parsed(params)
    return Answer(jsonable(await get_worker(conn, uuid_of(worker_id))))


async def kinds(conn: Conn, params: Params) -> Answer:
    parsed(params)
    return Answer(jsonable(await list_kinds(conn)))
