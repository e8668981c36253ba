"""The periodic loop: count the greetings."""

from datetime import timedelta

from holdfast import Loop, Pass, Result


async def count(ctx: Pass) -> Result:
    """Count the greetings."""
    async with ctx.connection() as conn:
        row = await (await conn.execute("SELECT count(*) FROM holdfast.greetings")).fetchone()
    return {"greetings": row[0]}


def loops(settings):
    """The loop of this service."""
    return [Loop("greetings_count", count, every=timedelta(hours=1), description="Counts the greetings.")]
