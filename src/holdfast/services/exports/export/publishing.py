"""How a result becomes visible: one manifest, put once, with the end of the job; and how what nobody named is removed.

`<to>/_manifest.json` names the files of exactly one attempt. It is put under a create-only precondition inside the finish
transaction, after the fence has held: of two attempts that come that far, one is refused by the store. A manifest whose
transaction was lost is found by the next attempt of the same job, which takes it over instead of writing everything again.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.crashpoints import crashpoint
from holdfast.errors import HoldfastError, UsageError
from holdfast.jobs.effects import Effect
from holdfast.services.exports.export.direct import PREFIX_EFFECT
from holdfast.services.exports.export.written import MANIFEST, Written, attempt_prefix, from_json
from holdfast.services.exports.stores.opening import opened
from holdfast.services.exports.stores.paths import location_of
from holdfast.services.exports.stores.port import AlreadyThere, NotThere, Store
from holdfast.settings import settings
from holdfast.worker.context import Context
from holdfast.worker.kinds import cleaner


class FencedOut(HoldfastError):
    """Another attempt has published: this one's files are for nobody."""


class DestinationTaken(UsageError):
    """Somebody else's result is at this place: results are never written over."""


def publisher(written: Written) -> Callable[[Any], Awaitable[None]]:
    """What a job's `Done(publish=…)` calls in the finish transaction."""

    async def publish(_: Any) -> None:
        async with opened(location_of(written.to), settings()) as store:
            await publish_manifest(store, written)

    return publish


async def publish_manifest(store: Store, written: Written) -> None:
    """Make the result visible. `FencedOut` if another attempt of the job did, `DestinationTaken` if another job did."""
    content = json.dumps(written.as_json(), indent=1, sort_keys=True).encode()
    try:
        await store.put(MANIFEST, content)
    except AlreadyThere:
        await _judge(store, written)
    crashpoint("export.published")


async def _judge(store: Store, written: Written) -> None:
    """A manifest is there: ours, by a lost answer or taken over, or one that fences us out."""
    other = await _manifest_at(store)
    if other.attempt_id == written.attempt_id:
        return
    if other.job_id == written.job_id:
        raise FencedOut(f"attempt {other.attempt_id} of job {written.job_id} has published to {written.to}")
    raise DestinationTaken(f"{written.to} holds the result of job {other.job_id}; choose another place")


async def _manifest_at(store: Store) -> Written:
    """The manifest that is there. `NotThere` if there is none, `DestinationTaken` if it is none that we could have written."""
    content = await store.get(MANIFEST)
    try:
        return from_json(json.loads(content))
    except (ValueError, KeyError, TypeError):
        raise DestinationTaken(
            f"{store.location.url} holds a {MANIFEST} that no export of ours has written, or not all of it; "
            "choose another place, or remove that file if nobody needs it"
        ) from None


async def published_before(ctx: Context, store: Store) -> Written | None:
    """What an earlier attempt of this job has published, now this one's; None if nobody has. `DestinationTaken` if another
    job's result is there: better said before the query has run than after."""
    try:
        there = await _manifest_at(store)
    except NotThere:
        return None
    if there.job_id != ctx.job.id:
        raise DestinationTaken(f"{store.location.url} holds the result of job {there.job_id}; choose another place")
    for effect in await ctx.left_behind():
        if effect.kind == PREFIX_EFFECT and effect.detail["prefix"] == attempt_prefix(there.attempt_id):
            await ctx.adopt(effect)
            return there
    raise FencedOut(f"{store.location.url} holds what an earlier run of job {ctx.job.id} left; it is being removed")


@cleaner(PREFIX_EFFECT)
async def remove_prefix(effect: Effect) -> bool:
    """Remove what an attempt left that nobody published; if its job has not completed, what names it goes first."""
    prefix = effect.detail["prefix"]
    async with opened(location_of(effect.detail["to"]), settings()) as store:
        if await _names(store, prefix):
            await store.delete(MANIFEST)
        await store.delete_prefix(prefix)
        async for left in store.list(prefix):
            return not left
    return True


async def _names(store: Store, prefix: str) -> bool:
    try:
        return attempt_prefix((await _manifest_at(store)).attempt_id) == prefix
    except (NotThere, DestinationTaken):
        return False
