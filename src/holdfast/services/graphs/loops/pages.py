"""All instances in some states, page by page. Memory stays bounded by the page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

from holdfast.schedule.context import Pass
from holdfast.services.graphs.instances.moving import PAGE, Moved, read_page
from holdfast.services.graphs.states import InstanceState


async def pages(ctx: Pass, states: Collection[InstanceState]) -> AsyncIterator[list[Moved]]:
    """All instances in these states, page by page."""
    after, more = 0, True
    while more:
        async with ctx.connection() as conn:
            page = await read_page(conn, after=after, states=states)
        if page:
            yield page
        after, more = page[-1].id if page else after, len(page) == PAGE
