"""A worker without database credentials as a program: it speaks to the HTTP API. Called by: `holdfast worker remote`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.crashpoints import arm_from_settings
from holdfast.errors import UsageError
from holdfast.settings import Settings
from holdfast.worker.checkup import WorkerCheckup
from holdfast.worker.kinds import Job
from holdfast.worker.loop import Worker
from holdfast.worker.options import WorkerOptions
from holdfast.worker.probe import Probe
from holdfast.worker.transports.http import Token
from holdfast.worker.transports.remote import Remote


def transport_from(given: Settings) -> Remote:
    """The way to the API that the settings name."""
    if given.api_url is None:
        raise UsageError("which API? give --api, or set HOLDFAST_API_URL")
    return Remote(given.api_url, _token(given), plain_http=given.plain_http)


def _token(given: Settings) -> Token | None:
    """A token, or one that is read anew for every request, so that a rotated file needs no restart."""
    if given.api_token_file is not None:
        file: Path = given.api_token_file
        if not file.is_file():
            raise UsageError(f"there is no token file {file}; set HOLDFAST_API_TOKEN_FILE to one that can be read")
        return lambda: file.read_text().strip()
    return None if given.api_token is None else given.api_token.get_secret_value()


def work_remotely(
    given: Settings,
    kinds: Sequence[Job[..., Any]],
    options: WorkerOptions,
    *,
    until_empty: bool = False,
    http: str | None = None,
) -> None:
    """Run these kinds until told to stop."""
    arm_from_settings(given.crash_at)
    asyncio.run(_work(transport_from(given), kinds, options, until_empty=until_empty, http=http))


async def _work(
    transport: Remote, kinds: Sequence[Job[..., Any]], options: WorkerOptions, *, until_empty: bool, http: str | None
) -> None:
    """SIGTERM and SIGINT let the worker finish what it has."""
    worker = Worker(transport, kinds, options)
    probe = None if http is None else Probe(http, WorkerCheckup(worker))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    try:
        await worker.run(until_empty=until_empty)
    finally:
        if probe is not None:
            probe.close()
