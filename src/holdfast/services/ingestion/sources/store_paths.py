"""Files that another program has put into the store: `path` in a request, below HOLDFAST_INGESTION_TO."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import psycopg

from holdfast.services.ingestion.setup import Ingestion
from holdfast.services.ingestion.sources import files
from holdfast.services.ingestion.sources.dialect import UnreadableFile
from holdfast.services.ingestion.sources.files import File
from holdfast.stores.port import NotThere
from holdfast.threads import in_thread

Conn = psycopg.AsyncConnection[Any]


async def known(conn: Conn, here: Ingestion, path: str, *, by: str) -> File:
    """The row of a file in the store, made if it is new: its size and hash are those of now."""
    async with here.store() as store:
        try:
            local = await store.local_copy(path)
        except NotThere:
            raise UnreadableFile(f"there is no file {path!r} below {store.location.url}; check the path") from None
        size, sha256 = await in_thread(_size_and_hash, local)
    return await files.add(conn, path, name=Path(path).name, size=size, sha256=sha256, by=by)


def _size_and_hash(file: Path) -> tuple[int, str]:
    with file.open("rb") as opened:
        return file.stat().st_size, hashlib.file_digest(opened, "sha256").hexdigest()
