"""Jobs inside a web application: `app = FastAPI(lifespan=holdfast.lifespan())`. Called by: the user's application.

It knows no web framework: a lifespan is a function that takes the application and gives back an async context manager. It
can be wrapped in another, as in `docs/howto/run-jobs-in-a-web-app.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from holdfast.crashpoints import arm_from_settings
from holdfast.database.embedded import EmbeddedPostgres
from holdfast.database.revision import require_current
from holdfast.extras import loaded
from holdfast.settings import Settings
from holdfast.telemetry.log import log
from holdfast.telemetry.trace import export_to
from holdfast.worker.in_process import in_process
from holdfast.worker.kinds import Job
from holdfast.worker.options import WorkerOptions

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def lifespan(
    url: str | None = None,
    *,
    kinds: Iterable[Job[..., Any]] | None = None,
    options: WorkerOptions | None = None,
    run: bool | None = None,
) -> Lifespan:
    """Enqueue from routes, and run jobs beside them, for as long as the application runs.

    `url`: else HOLDFAST_DATABASE_URL, else an embedded Postgres. `kinds`: else all that are registered when it starts. `run`:
    whether jobs run here; else HOLDFAST_RUN_BACKGROUND_POLLER, which is true. The client is `app.state.holdfast`.

    The application does not start without its database: `DatabaseProblem` if it cannot be reached, `NotMigrated` if its schema
    is missing or another version's. A database that is lost later is waited for, and the application goes on.
    """

    @asynccontextmanager
    async def span(app: Any) -> AsyncIterator[None]:
        given = Settings()  # when it starts, and not when it is imported
        arm_from_settings(given.crash_at)
        export_to(given.traces)
        runs_here = given.run_background_poller if run is None else run
        with _database(url or given.database_url, given) as address:
            await asyncio.to_thread(require_current, address)
            async with in_process(address, kinds, _options(options, given), run=runs_here) as client:
                if hasattr(app, "state"):
                    app.state.holdfast = client
                yield

    return span


@contextmanager
def _database(url: str | None, given: Settings) -> Iterator[str]:
    """The database that was named, or the embedded one with the current schema for as long as the block runs."""
    if url:
        yield url
        return
    folder = given.data_dir.absolute()
    with EmbeddedPostgres(
        folder, port=given.port, on_message=lambda text: log.info("embedded_postgres", message=text)
    ) as server:
        loaded("holdfast.database.migrate", extra="embedded").migrate(server.url)
        yield server.url


def _options(options: WorkerOptions | None, given: Settings) -> WorkerOptions:
    if options is not None:
        return replace(options, runner="in process")
    return WorkerOptions.from_settings(given, runner="in process")
