"""The command of the process schedules: many on several stages at once, or one in full.

    python -m proof.processes --schedules 1000
    python -m proof.processes --seed 123 --repeat 5

A schedule mostly waits for leases to end, so there are more stages than cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from proof.processes.play import Result, never_exercised, play_seeds
from proof.schedules.run import alike
from proof.termination import end_children_on_sigterm

HOW_TO_REPLAY = "python -m proof.processes --seed"
STAGES = 3 * (os.cpu_count() or 1)


@dataclass(slots=True)
class Summary:
    """What many schedules came to."""

    played: int = 0
    seconds: float = 0.0
    violations: list[tuple[int, str]] = field(default_factory=list)
    exercised: Counter[str] = field(default_factory=Counter)

    @property
    def missing(self) -> list[str]:
        return never_exercised(self.exercised)


Brief = tuple[int, list[str], Counter[str]]  # seed, violations, what was met


def _share(folder: str, seeds: list[int], news: multiprocessing.Queue[Brief | None]) -> None:
    played = 0

    def on_result(result: Result) -> None:
        nonlocal played
        played += 1
        news.put((result.plan.seed, [str(violation) for violation in result.violations], result.exercised))

    left = list(seeds)
    while left:  # a schedule that breaks its stage is a violation like any other, and the rest goes on with a new one
        try:
            play_seeds(Path(folder) / str(len(left)), left, on_result)
            break
        except Exception as error:
            traceback.print_exc()
            broken, left = left[played], left[played + 1 :]
            played = 0
            news.put((broken, [f"the stage broke: {error!r}"[:300]], Counter()))
    news.put(None)


def play_many(seeds: list[int], stages: int = STAGES, on_progress: Callable[[int], None] = lambda _: None) -> Summary:
    """Play the seeds on so many stages, each with a server of its own."""
    began, total = time.monotonic(), Summary()
    context = multiprocessing.get_context("spawn")  # a stage forks servers and proxies; it begins clean
    news: multiprocessing.Queue[Brief | None] = context.Queue()
    stages = max(1, min(stages, len(seeds)))
    with TemporaryDirectory(prefix="holdfast-proof-") as folder:
        folders = [Path(folder) / str(number) for number in range(stages)]
        children = [context.Process(target=_share, args=(str(own), seeds[n::stages], news)) for n, own in enumerate(folders)]
        for own, child in zip(folders, children, strict=True):
            own.mkdir()
            child.start()
        left = stages
        while left:
            try:
                brief = news.get(timeout=10)
            except queue.Empty:
                if not any(child.is_alive() for child in children):
                    raise RuntimeError("a stage died; see its error above") from None
                continue
            if brief is None:
                left -= 1
                continue
            seed, violations, exercised = brief
            total.played += 1
            total.violations += [(seed, sentence) for sentence in violations]
            total.exercised += exercised
            on_progress(total.played)
        for child in children:
            child.join()
    total.seconds = time.monotonic() - began
    total.violations.sort()
    return total


def main() -> None:
    """Play, and say what came of it. Ends with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m proof.processes", description="Real processes under real faults.")
    parser.add_argument("--schedules", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--stages", type=int, default=STAGES, help=f"how many at once (default: {STAGES})")
    parser.add_argument("--seed", type=int, help="play this one again, and show all of it")
    parser.add_argument("--repeat", type=int, default=1, help="with --seed: how often")
    options = parser.parse_args()
    end_children_on_sigterm()
    if options.seed is not None:
        sys.exit(replay([options.seed] * options.repeat))
    seeds = list(range(options.first, options.first + options.schedules))
    summary = play_many(seeds, options.stages, lambda played: print(f"\r{played}", end="", file=sys.stderr))
    sys.exit(report(summary))


def replay(seeds: list[int]) -> int:
    """Each in full; how many had violations."""
    bad = 0

    def on_result(result: Result) -> None:
        nonlocal bad
        bad += bool(result.violations)
        show(result)

    with TemporaryDirectory(prefix="holdfast-proof-") as folder:
        play_seeds(Path(folder), seeds, on_result)
    print(f"{len(seeds)} played, {bad} with violations")
    return bad


def show(result: Result) -> None:
    """The whole execution of a schedule: plan, witness, history, and what the workers said."""
    print(f"seed {result.plan.seed}, {result.seconds:.2f} s {result.phases}")
    print(f"  workers: {result.plan.workers}\n  faults: {result.plan.faults}")
    begin = result.account.lines[0].wall if result.account.lines else 0.0
    lines = [(line.wall, f"witness  {line.what:7} job {line.job} attempt {line.number} {line.attempt[:8]} fence {line.fence} "
              f"process {line.pid} {line.key or line.tag or ''}") for line in result.account.lines]  # fmt: skip
    for moves in result.account.execution.moves.values():
        for move in moves:
            what = f"{move.move:8} job {move.job_id} → {move.state} attempt {move.attempt_no} {(move.attempt_id or '')[:8]}"
            lines.append((move.at.timestamp(), f"history  {what} {move.actor or ''} {move.reason or ''}"))
    for at, text in sorted(lines):
        print(f"  {at - begin:8.3f} {text}")
    print("\n".join(f"  {line}" for line in result.log.splitlines()))
    for violation in result.violations:
        print(f"VIOLATED {violation}")


def report(summary: Summary) -> int:
    rate = summary.played / max(summary.seconds, 0.001)
    print(f"\n{summary.played} schedules, {summary.seconds:.0f} s, {rate:.1f}/s")
    for pattern, seeds in alike(summary.violations):
        print(f"  {len(seeds)} × {pattern}\n      replay: {HOW_TO_REPLAY} {seeds[0]}   (also {seeds[1:5]})")
    if summary.missing:
        print(f"never exercised: {', '.join(summary.missing)}")
    print(f"{len(summary.violations)} violations")
    return 1 if summary.violations or summary.missing else 0
