"""Workers that run beside a test, in its own event loop, and what tests wait for then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import make_url

from factories import value
from holdfast import Worker
from holdfast.jobs.views.read import get_job

PATIENCE = 120.0  # seconds: only a test that fails waits for so long
DOOMED = "doomed"
IS_GONE = "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"


@asynccontextmanager
async def beside(worker: Worker) -> AsyncIterator[Worker]:
    """It runs beside the test, and has left when the block ends."""
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(running, PATIENCE)


async def until(reached: Callable[[], Awaitable[Any]], seconds: float = PATIENCE) -> Any:
    """What `reached` says as soon as it says something."""
    async with asyncio.timeout(seconds):
        while not (found := await reached()):
            await asyncio.sleep(0.01)
    return found


def doomed(url: str) -> str:
    """The address for a worker that will be killed: its sessions have a name of their own, see `until_gone`."""
    return make_url(url).update_query_dict({"application_name": DOOMED}).render_as_string(hide_password=False)


async def until_gone(conn: Any) -> None:
    """Wait until no session of killed workers is left. Before that, the server may execute their last heartbeat, which would
    make a lease long again that the test has ended."""
    await until(lambda: value(conn, IS_GONE, DOOMED))


async def ended(conn: Any, job_id: int) -> Any:
    """The job, when it has come to its end."""

    async def is_over() -> bool:
        return (await get_job(conn, job_id)).finished_at is not None

    await until(is_over)
    return await get_job(conn, job_id)
