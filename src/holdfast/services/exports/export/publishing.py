"""How the result of `exports.run` becomes visible: one manifest, written once, when the job ends. Removes other files.

`<to>/_manifest.json` names the files of exactly one attempt. It is created inside the finish transaction, after the fence was
checked, with a create-only precondition: of two attempts that come that far, the store refuses one. If the transaction is lost
after that, the next attempt of the same job finds the manifest and adopts it instead of exporting again.
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
from holdfast.services.exports.setup import exports_here
from holdfast.stores.opening import StoreOptions, opened_store
from holdfast.stores.paths import location_of
from holdfast.stores.port import AlreadyThere, NotThere, Store
from holdfast.worker.context import Context
from holdfast.worker.kinds import cleaner


class FencedOut(HoldfastError):
    """Another attempt has published its result. The files of this one are removed."""


class DestinationTaken(UsageError):
    """The destination has the result of another job. Results are never overwritten."""


def publisher(written: Written, stores: StoreOptions) -> Callable[[Any], Awaitable[None]]:
    """The function for `Done(publish=…)`, which runs in the finish transaction."""

    async def publish(_: Any) -> None:
        async with opened_store(location_of(written.to), stores) as store:
            await publish_manifest(store, written)

    return publish


async def publish_manifest(store: Store, written: Written) -> None:
    """Make the result visible. `FencedOut` if another attempt of the job did, `DestinationTaken` if another job did."""
    content = json.dumps(written.as_json(), indent=1, sort_keys=True).encode()
    try:
        await store.put(MANIFEST, content)
    except AlreadyThere:
        await _accept_or_refuse(store, written)
    crashpoint("export.published")


async def _accept_or_refuse(store: Store, written: Written) -> None:
    """There is a manifest. It is ours if an answer was lost or it was adopted; otherwise our result is refused."""
    other = await _manifest_at(store)
    if other.attempt_id == written.attempt_id:
        return
    if other.job_id == written.job_id:
        raise FencedOut(f"attempt {other.attempt_id} of job {written.job_id} has published to {written.to}")
    raise DestinationTaken(f"{written.to} has the result of job {other.job_id}; choose another destination")


async def _manifest_at(store: Store) -> Written:
    """The manifest at the destination. `NotThere` if there is none, `DestinationTaken` if it was not written by an export."""
    content = await store.get(MANIFEST)
    try:
        return from_json(json.loads(content))
    except (ValueError, KeyError, TypeError):
        raise DestinationTaken(
            f"{store.location.url} has a {MANIFEST} that was not written by an export, or is incomplete; "
            "choose another destination, or remove that file"
        ) from None


async def published_before(ctx: Context, store: Store) -> Written | None:
    """The result that an earlier attempt of this job has published, adopted by this attempt; None if there is none.

    `DestinationTaken` if the result of another job is there, so that the query is not run in vain.
    """
    try:
        there = await _manifest_at(store)
    except NotThere:
        return None
    if there.job_id != ctx.job.id:
        raise DestinationTaken(f"{store.location.url} has the result of job {there.job_id}; choose another destination")
    for effect in await ctx.left_behind():
        if effect.kind == PREFIX_EFFECT and effect.detail["prefix"] == attempt_prefix(there.attempt_id):
            await ctx.adopt(effect)
            return there
    raise FencedOut(f"{store.location.url} has files of an earlier run of job {ctx.job.id}; they are being removed")


@cleaner(PREFIX_EFFECT)
async def remove_prefix(effect: Effect) -> bool:
    """Remove the unpublished files of an attempt. If its job has not completed, the manifest that names them goes first."""
    prefix = effect.detail["prefix"]
    async with opened_store(location_of(effect.detail["to"]), exports_here().stores) as store:
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
