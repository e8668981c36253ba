"""A worker as a program: import the modules with the kinds, work until told to stop.

python -m holdfast.apps.worker --url postgresql://… --import my.jobs --concurrency 10
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import signal
import sys
from datetime import timedelta

from holdfast.telemetry.log import configure
from holdfast.worker.loop import Worker, WorkerOptions


async def work(url: str, options: WorkerOptions, *, until_empty: bool = False) -> None:
    """Run a worker; SIGTERM and SIGINT let it finish what it has."""
    worker = Worker(url, options=options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    await worker.run(until_empty=until_empty)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="holdfast worker", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--import", dest="modules", action="append", default=[], help="a module whose kinds to run")
    parser.add_argument("--queue", dest="queues", action="append", default=None)
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--beat", type=float, default=5.0, help="seconds between heartbeats")
    parser.add_argument("--lease", type=float, default=30.0, help="seconds that a silent worker keeps its jobs")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds that running jobs get at the end")
    parser.add_argument("--name", default=None)
    parser.add_argument("--json", action="store_true", help="log as JSON lines")
    parser.add_argument("--drain", action="store_true", help="end when there is nothing left to do")
    given = parser.parse_args(arguments)
    configure(json=given.json)
    for module in given.modules:
        importlib.import_module(module)
    options = WorkerOptions(
        queues=tuple(given.queues or ("default",)),
        concurrency=given.concurrency,
        beat=timedelta(seconds=given.beat),
        lease=timedelta(seconds=given.lease),
        grace=timedelta(seconds=given.grace),
        name=given.name,
    )
    asyncio.run(work(given.url, options, until_empty=given.drain))


if __name__ == "__main__":
    main(sys.argv[1:])
