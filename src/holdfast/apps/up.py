"""Everything on one machine: embedded Postgres, schema, demo, and then the control plane. Called by: `holdfast up`."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from rich.console import Console

from holdfast.apps import demo, demo_export
from holdfast.apps.database import database
from holdfast.apps.migrate import bring_up_to_date
from holdfast.database.pool import place_of
from holdfast.settings import Settings


def up(settings: Settings, console: Console, *, stay: Callable[[str], None] | None, play: bool = True) -> bool:
    """Start, migrate, play the demo; then do what is to be done as long as it stays up. Whether the demo ended as promised."""
    started = time.monotonic()
    with database(settings, console) as url:
        console.print(f"[dim]{bring_up_to_date(url)}[/]")
        console.print(f"[bold]Ready[/] in {time.monotonic() - started:.1f} s.\n")
        well = not play or asyncio.run(_play(url, console, settings))
        if stay is not None and well:
            console.print(f"\n  {_what_stays(url, settings)} Ctrl-C ends everything.\n")
            stay(url)
        return well


async def _play(url: str, console: Console, settings: Settings) -> bool:
    """The demo as a task that Ctrl-C and SIGTERM cancel, so that every process it started is ended."""
    playing = asyncio.create_task(_stories(url, console, settings))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, playing.cancel)
    try:
        return await playing
    except asyncio.CancelledError:
        console.print("\nStopped.")
        return False


async def _stories(url: str, console: Console, settings: Settings) -> bool:
    return await demo.play(url, console) and await demo_export.play(url, console, settings)


def _what_stays(url: str, settings: Settings) -> str:
    """Where the database is; of ours, also where its password is. Pure."""
    if settings.database_url:
        return f"The database is yours: [bold]{place_of(url)}[/]."
    return f"Postgres stays up: [bold]{_without_password(url)}[/] (password in {settings.data_dir / 'password'})."


def _without_password(url: str) -> str:
    scheme, rest = url.split("://", 1)
    user, at, place = rest.rpartition("@")
    return f"{scheme}://{user.split(':')[0]}{at}{place}"
