"""Which database is meant. Called by: every command that runs a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from holdfast.database.embedded import EmbeddedPostgres
from holdfast.settings import Settings


@contextmanager
def database(settings: Settings, console: Console) -> Iterator[str]:
    """The database that the settings name, or the embedded one for as long as the block runs."""
    if settings.database_url:
        yield settings.database_url
        return
    with EmbeddedPostgres(
        settings.data_dir.absolute(), port=settings.port, on_message=lambda text: console.print(f"[dim]{text}[/]")
    ) as server:
        yield server.url
