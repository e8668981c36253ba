"""Everything on one machine: embedded Postgres, schema, demo, then the control plane. Called by: `holdfast up`."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from rich.console import Console

from holdfast import catalog
from holdfast.apps import demo
from holdfast.apps.database import Running, running_database
from holdfast.apps.migrate import bring_up_to_date
from holdfast.database.pool import place_of
from holdfast.distribution import install_hint
from holdfast.extras import missing_extras
from holdfast.settings import Settings


def up(settings: Settings, console: Console, *, stay: Callable[[str], None] | None, play: bool = True) -> bool:
    """Start, migrate and play the demo, then call `stay` with the address. Returns whether the demo had the expected result."""
    started = time.monotonic()
    with running_database(settings, console) as running:
        console.print(f"[dim]{bring_up_to_date(running.url)}[/]")
        console.print(f"[bold]Ready[/] in {time.monotonic() - started:.1f} s.\n")
        succeeded = not play or asyncio.run(_play(running.url, console, settings))
        if stay is not None and succeeded:
            console.print(f"\n  {_what_stays(running, settings)}\n")
            stay(running.url)
        return succeeded


async def _play(url: str, console: Console, settings: Settings) -> bool:
    """Run the demo as a task that Ctrl-C and SIGTERM cancel, so that every process it started ends."""
    playing = asyncio.create_task(_demos(url, console, settings))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, playing.cancel)
    try:
        return await playing
    except asyncio.CancelledError:
        console.print("\nStopped.")
        return False


async def _demos(url: str, console: Console, settings: Settings) -> bool:
    """The demo of the kernel, then of every service whose extras are installed."""
    if not await demo.play(url, console):
        return False
    for service in catalog.SERVICES:
        if not service.demo:
            continue
        if missing := missing_extras(service.extras):
            hint = f"\n  The demo of {service.name} is skipped, because it needs more packages: {install_hint(*missing)}"
            console.print(hint, style="dim", markup=False)
        elif not await service.module(service.demo).play(url, console, settings):
            return False
    return True


def _what_stays(running: Running, settings: Settings) -> str:
    """Where the database is, for the embedded one where its password is, and what Ctrl-C ends. Pure."""
    if settings.database_url:
        return f"Database: [bold]{place_of(running.url)}[/]. Ctrl-C stops the control plane."
    where = f"Postgres: [bold]{_without_password(running.url)}[/] (password in {settings.data_dir / 'password'})."
    if running.ends_with_us:
        return f"{where} Ctrl-C stops everything."
    return f"{where} Another process started it: Ctrl-C stops this control plane only."


def _without_password(url: str) -> str:
    scheme, rest = url.split("://", 1)
    user, at, place = rest.rpartition("@")
    return f"{scheme}://{user.split(':')[0]}{at}{place}"
