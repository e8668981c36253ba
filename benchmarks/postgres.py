"""The one Postgres that everything in a run is measured on, and a fresh database for each measurement.

Commits are as durable as in production (fsync, synchronous_commit and full_page_writes stay on, and the run refuses a
server where they are off). Checkpoints are made before a measurement and kept away from it; autovacuum stays on.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from holdfast.database.embedded import EmbeddedPostgres

SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "512MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
}
# Not /tmp: it is memory on many machines, and a sync to memory costs nothing.
DISK = "/var/tmp" if Path("/var/tmp").is_dir() else None
DURABLE = ("fsync", "synchronous_commit", "full_page_writes")


@contextmanager
def postgres(database_url: str | None = None) -> Iterator[str]:
    """The address of a running server: the given one, or a new embedded one that ends with this block."""
    if database_url is not None:
        yield database_url
        return
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=DISK, ignore_cleanup_errors=True) as folder,
        EmbeddedPostgres(Path(folder), settings=SETTINGS) as server,
    ):
        yield server.url


class Server:
    """A connection for making and dropping databases, and for asking about the server."""

    def __init__(self, url: str, admin: asyncpg.Connection) -> None:
        self.url, self._admin = url, admin

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator[Server]:
        admin = await asyncpg.connect(url)
        try:
            server = cls(url, admin)
            await server._refuse_lossy_commits()
            yield server
        finally:
            await admin.close()

    async def version(self) -> str:
        version: str = await self._admin.fetchval("SHOW server_version")
        return version

    async def settings(self) -> dict[str, str]:
        """The settings that matter to the figures, as the server has them."""
        return {name: await self._admin.fetchval("SELECT current_setting($1)", name) for name in SETTINGS}

    async def commit_ms(self, count: int = 200) -> float:
        """What one durable commit of one row costs here: the unit in which everything else can be read."""
        async with self.database("bench_commit") as url, connection(url) as conn:
            await conn.execute("CREATE TABLE tick (id bigserial PRIMARY KEY, note text)")
            started = time.monotonic()
            for _ in range(count):
                await conn.execute("INSERT INTO tick (note) VALUES ($1)", "tick")
            return (time.monotonic() - started) / count * 1000

    async def create(self, name: str, *, template: str = "template0") -> str:
        """A new database in place of an old one of that name; its address."""
        await self.drop(name)
        await self._admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    async def drop(self, name: str) -> None:
        await self._admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    @asynccontextmanager
    async def database(self, name: str, *, template: str = "template0") -> AsyncIterator[str]:
        """A database for the length of a block."""
        url = await self.create(name, template=template)
        try:
            yield url
        finally:
            await self.drop(name)

    async def settle(self, url: str) -> None:
        """Give every table its statistics, as autovacuum would within a minute, and write out what is dirty."""
        async with connection(url) as conn:
            await conn.execute("VACUUM (ANALYZE)")
            await conn.execute("CHECKPOINT")

    async def _refuse_lossy_commits(self) -> None:
        off = [name for name in DURABLE if await self._admin.fetchval("SELECT current_setting($1)", name) != "on"]
        if off:
            raise SystemExit(f"this Postgres could lose commits ({', '.join(off)} not on): its figures would mean nothing")


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[asyncpg.Connection]:
    """One connection, closed at the end."""
    conn = await asyncpg.connect(url)
    try:
        yield conn
    finally:
        await conn.close()
