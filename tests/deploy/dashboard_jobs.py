"""Jobs for the run that the dashboards are checked against."""

from holdfast import Context, Fail, job


@job("shown.works")
async def works(ctx: Context) -> dict[str, int]:
    return {"done": 1}


@job("shown.fails", max_attempts=1)
async def fails(ctx: Context) -> Fail:
    return Fail("on purpose")
