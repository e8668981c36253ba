"""`make bench`: every peer, every workload, one Postgres; prints tables and writes `results.json`.

`--quick` is a smaller run, `--only` and `--peers` choose parts of it; only a full run replaces `results.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.figures import figures
from benchmarks.machine import conditions, describe
from benchmarks.peers import NAMES, Peer, PeerMissingError, load
from benchmarks.postgres import Server, postgres
from benchmarks.processes import ChildFailedError
from benchmarks.report import print_figures, print_tables, write_results
from benchmarks.scene import QUICK, MeasurementError, Samples, Scale, Scene
from benchmarks.workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="Holdfast beside its peers, in ratios.")
    parser.add_argument("--quick", action="store_true", help="fewer jobs and one round: to see that it works")
    parser.add_argument("--only", type=listed, default=list(WORKLOADS), metavar="NAMES", help=", ".join(WORKLOADS))
    parser.add_argument("--peers", type=listed, default=list(NAMES), metavar="NAMES", help=", ".join(NAMES))
    parser.add_argument("--database-url", help="an existing Postgres; databases called bench_… are made and dropped there")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default: results.json, after a full run only)")
    chosen = parser.parse_args()
    for name in chosen.only:
        if name not in WORKLOADS:
            parser.error(f"no workload is called {name}; there are {', '.join(WORKLOADS)}")
    return chosen


def listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def available(names: Sequence[str], console: Console) -> list[Peer]:
    """The peers that can be measured here; says which cannot."""
    peers = []
    for name in names:
        try:
            peers.append(load(name))
        except PeerMissingError as missing:
            console.log(f"[yellow]{missing}[/]")
    return peers


async def run(chosen: argparse.Namespace, console: Console) -> None:
    started = time.monotonic()
    samples = Samples()
    peers = available(chosen.peers, console)
    with postgres(chosen.database_url) as url:
        async with Server.connect(url) as server:
            machine = await describe(server)
            scene = Scene(server, peers, QUICK if chosen.quick else Scale(), samples, console)
            console.log(f"Postgres {machine['postgres']}, {machine['cores']} cores")
            await scene.make_templates()
            try:
                for name in chosen.only:
                    now = machine["conditions"][name] = await conditions(server)
                    console.rule(f"{name} (a commit takes {now['commit_ms']} ms, load {now['load']})")
                    try:
                        await WORKLOADS[name](scene)
                    except (ChildFailedError, TimeoutError, MeasurementError) as error:
                        scene.failures.append(f"{name}: {error}")
                        console.log(f"[red]{name} is given up:[/] {error}")
            finally:
                await scene.drop_templates()
    measured = figures(samples.values)
    print_tables(console, peers, samples)
    print_figures(console, measured)
    machine["seconds"] = round(time.monotonic() - started)
    console.print(f"{machine['seconds']} s; rates are medians, in brackets the span of the rounds")
    everybody = {peer.name for peer in peers} == set(NAMES)
    is_full = everybody and not chosen.quick and set(chosen.only) == set(WORKLOADS)
    if out := chosen.out or (RESULTS if is_full else None):
        write_results(out, machine=machine, peers=peers, figures=measured, samples=samples)
        console.print(f"written to {out}")
    for failure in scene.failures:
        console.print(f"[red]{failure}[/]")
    if scene.failures:
        raise SystemExit(1)


def main() -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a log file has no width of its own
    chosen = arguments()

    async def until_told() -> None:
        task = asyncio.ensure_future(run(chosen, console))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # so that everything is tidied up
        await task

    try:
        asyncio.run(until_told())
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise SystemExit("stopped; nothing is left behind") from None


if __name__ == "__main__":
    main()
