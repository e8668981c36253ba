"""Open the store for an address, with options that the program makes from its settings."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.extras import loaded
from holdfast.stores.credentials import GcsCredentials, S3Credentials
from holdfast.stores.local import LocalStore
from holdfast.stores.paths import Location
from holdfast.stores.port import Store

if TYPE_CHECKING:
    from holdfast.stores.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Where files may be written on this machine, and the credentials for object stores."""

    allowed: tuple[Path, ...] = ()  # local files may be read and written below these folders only
    closed: tuple[Path, ...] = ()  # and never in these
    s3: S3Credentials = field(default_factory=S3Credentials)
    gcs: GcsCredentials = field(default_factory=GcsCredentials)
    scratch: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))  # files wait here for their upload

    @classmethod
    def from_settings(cls, settings: StoreSettings) -> StoreOptions:
        """The options that the settings describe."""
        key = settings.s3_secret_access_key
        return cls(
            allowed=tuple(settings.writable_folders),
            closed=tuple(settings.closed_folders),
            s3=S3Credentials(
                settings.s3_endpoint,
                settings.s3_region,
                settings.s3_access_key_id,
                key.get_secret_value() if key else None,
                settings.s3_credentials_file,
            ),
            gcs=GcsCredentials(settings.gcs_endpoint, settings.gcs_credentials_file, settings.gcs_token_file),
            scratch=settings.scratch_dir or Path(tempfile.gettempdir()),
        )


def open_store(location: Location, options: StoreOptions) -> Store:
    """The store at this location. The caller closes it."""
    if location.scheme == "file":
        return LocalStore(location, allowed=options.allowed, closed=options.closed)
    credentials = options.s3 if location.scheme == "s3" else options.gcs
    store: Store = loaded("holdfast.stores.objects").ObjectStore(location, credentials, options.scratch)
    return store


@asynccontextmanager
async def opened_store(location: Location, options: StoreOptions) -> AsyncIterator[Store]:
    """The store at this location, for the length of a block."""
    store = open_store(location, options)
    try:
        yield store
    finally:
        await store.close()
