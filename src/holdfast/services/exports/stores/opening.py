"""The store for an address, as the settings describe it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.services.exports.extras import loaded
from holdfast.services.exports.stores.local import LocalStore
from holdfast.services.exports.stores.paths import Location
from holdfast.services.exports.stores.port import Store
from holdfast.settings import Settings


def open_store(location: Location, settings: Settings) -> Store:
    """The store at this place. Whoever opens it closes it."""
    if location.scheme == "file":
        return LocalStore(location, allowed=settings.export_folders, closed=settings.closed_folders)
    store: Store = loaded("holdfast.services.exports.stores.objects").from_settings(location, settings)
    return store


@asynccontextmanager
async def opened(location: Location, settings: Settings) -> AsyncIterator[Store]:
    """The store at this place, for the length of a block."""
    store = open_store(location, settings)
    try:
        yield store
    finally:
        await store.close()
