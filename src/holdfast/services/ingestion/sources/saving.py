"""Save an upload: stream it to the store, and record it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import uuid4

from holdfast.services.ingestion import measures
from holdfast.services.ingestion.setup import Ingestion
from holdfast.services.ingestion.sources.uploads import plain_name, receive


@dataclass(frozen=True, slots=True)
class Saved:
    """A file that is in the store and not yet recorded."""

    path: str
    name: str
    size: int
    sha256: str


async def save(here: Ingestion, body: AsyncIterator[bytes], content_type: str, name: str | None = None) -> Saved:
    """Write an upload to the store. If it is refused, nothing is left."""
    path = f"files/{uuid4().hex}"
    async with here.store() as store:
        place = store.stage(path)
        try:
            got = await receive(body, content_type, place, here.largest_upload)
            await store.put_file(path, place)
        finally:
            place.unlink(missing_ok=True)
    measures.uploaded_bytes.inc(got.size)
    return Saved(path, plain_name(name) if name is not None else got.name, got.size, got.sha256)
