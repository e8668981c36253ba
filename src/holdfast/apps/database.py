"""Which database a program uses. Called by: every command that runs a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console

from holdfast.database.embedded import EmbeddedPostgres
from holdfast.settings import Settings


class Running(NamedTuple):
    """A database that can be used, and whether its server ends with this process."""

    url: str
    ends_with_us: bool


@contextmanager
def running_database(settings: Settings, console: Console) -> Iterator[Running]:
    """The database that the settings name, or the embedded one for as long as the block runs."""
    if settings.database_url:
        yield Running(settings.database_url, ends_with_us=False)
        return
    with EmbeddedPostgres(
        settings.data_dir.absolute(), port=settings.port, on_message=lambda text: console.print(text, style="dim", markup=False)
    ) as server:
        yield Running(server.url, ends_with_us=server.owner)


@contextmanager
def database(settings: Settings, console: Console) -> Iterator[str]:
    """The address of that database."""
    with running_database(settings, console) as running:
        yield running.url
