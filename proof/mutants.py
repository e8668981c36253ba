"""Tests of the tests: break the protocol on purpose and see that the suite goes red. Called by: `prove.py`, people.

    python -m proof.mutants                       # all of them
    python -m proof.mutants --only rescue-by-id   # one, with what caught it
    python -m proof.mutants --list

Each mutant meets the schedules first, in a process of its own, until the first violation; if they do not notice, the
tests that should; if those do not either, all tests of the kernel. One that nobody notices is a hole in the suite.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proof.mistakes import MUTANTS
from proof.mutation_plugin import VARIABLE
from proof.mutations import Mutant
from proof.run import HOW_TO_REPLAY, database, server
from proof.schedules import Result, play_now

ROOT = Path(__file__).parent.parent
KERNEL_TESTS = ROOT / "tests" / "postgres" / "jobs"
SCHEDULES = 400  # before the schedules give up on a mutant
PATIENCE = 900  # seconds for a run of tests or schedules: the machine may be busy
FIRST_SEED = 0  # the seeds that `make prove` has just played on the real kernel


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: who noticed, and how."""

    mutant: Mutant
    caught: bool
    by: str
    sentence: str
    seconds: float


def by_name(name: str) -> Mutant:
    """The mutant of that name."""
    found = [mutant for mutant in MUTANTS if mutant.name == name]
    if not found:
        raise SystemExit(f"there is no mutant {name!r}; see `python -m proof.mutants --list`")
    return found[0]


def try_out(mutant: Mutant, server_url: str, schedules: int = SCHEDULES) -> Verdict:
    """Let the suite meet the mutant."""
    began = time.monotonic()
    seeds = list(range(FIRST_SEED, FIRST_SEED + schedules))
    seen = _meet_schedules(mutant, server_url, seeds)
    if seen is not None:
        _refuse_if_red_anyway(server_url, seeds[seen[0] - 1])
        return Verdict(mutant, True, f"schedules, after {seen[0]}", seen[1], time.monotonic() - began)
    for by, paths in (("tests", _tests_for(mutant)), ("all kernel tests", [KERNEL_TESTS])):
        failed = _meet_tests(mutant, server_url, paths)
        if failed is not None:
            return Verdict(mutant, True, by, failed, time.monotonic() - began)
    return Verdict(mutant, False, "nobody", "it survived", time.monotonic() - began)


# ---------------------------------------------------------------------------------------------------------------------
# The schedules
# ---------------------------------------------------------------------------------------------------------------------


def _refuse_if_red_anyway(server_url: str, seed: int) -> None:
    """A schedule that is red on the real kernel too says nothing about a mutant."""
    seen = _meet_schedules(None, server_url, [seed])
    if seen is not None:
        raise SystemExit(f"without any mutant: {seen[1]}; replay: {HOW_TO_REPLAY} {seed}")


def _meet_schedules(mutant: Mutant | None, server_url: str, seeds: list[int]) -> tuple[int, str] | None:
    """How many schedules it took, and what they saw; None if they saw nothing."""
    context = multiprocessing.get_context("fork")
    answer: multiprocessing.Queue[Any] = context.Queue()
    child = context.Process(target=_play_mutated, args=(mutant, server_url, seeds, answer))
    child.start()
    seen = answer.get(timeout=PATIENCE)
    child.join()
    if isinstance(seen, Exception):
        raise seen
    return seen


def _play_mutated(mutant: Mutant | None, server_url: str, seeds: list[int], answer: multiprocessing.Queue[Any]) -> None:
    seen: list[tuple[int, str]] = []
    played = 0

    def on_result(result: Result) -> bool:
        nonlocal played
        played += 1
        if result.violations:
            seen.append((played, f"{result.violations[0]} (seed {result.seed})"))
        return bool(seen)

    try:
        if mutant is not None:
            mutant.apply()
        with database(server_url) as url:
            play_now(url, seeds, on_result)
    except Exception as error:  # the parent raises it: a mutant that cannot be tried is no mutant
        answer.put(error)
    else:
        answer.put(seen[0] if seen else None)


# ---------------------------------------------------------------------------------------------------------------------
# The tests
# ---------------------------------------------------------------------------------------------------------------------


def _tests_for(mutant: Mutant) -> list[Path]:
    paths = [KERNEL_TESTS / f"{name}.py" for name in mutant.tests]
    return [path for path in paths if path.exists()]


def _meet_tests(mutant: Mutant | None, server_url: str, paths: Sequence[Path]) -> str | None:
    """The first test that failed, or None."""
    if not paths:
        return None
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-rfE", "-p", "proof.mutation_plugin"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HOLDFAST_TEST_DATABASE_URL": server_url}
    environment.pop(VARIABLE, None)
    if mutant is not None:
        environment[VARIABLE] = mutant.name
    try:
        done = subprocess.run(
            [*command, *map(str, paths)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {PATIENCE} s"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0] if lines else (done.stdout + done.stderr).strip()[-300:]


def suite_is_green(server_url: str) -> str | None:
    """Without any mutant the same tests must pass, or red means nothing: the first failure, or None."""
    return _meet_tests(None, server_url, [KERNEL_TESTS] if KERNEL_TESTS.exists() else [])


# ---------------------------------------------------------------------------------------------------------------------
# All of them
# ---------------------------------------------------------------------------------------------------------------------


def try_all(
    server_url: str,
    mutants: Sequence[Mutant] = MUTANTS,
    *,
    processes: int = 2,
    schedules: int = SCHEDULES,
    on_verdict: Callable[[Verdict], None] = lambda _: None,
) -> list[Verdict]:
    """Let the suite meet all of them, several at a time."""
    verdicts = []
    with ThreadPoolExecutor(processes) as threads:
        for verdict in threads.map(lambda mutant: try_out(mutant, server_url, schedules), mutants):
            on_verdict(verdict)
            verdicts.append(verdict)
    return verdicts


def main() -> None:
    """Try them out and print who noticed. Ends with 1 if one survived."""
    parser = argparse.ArgumentParser(prog="python -m proof.mutants", description="Protocol mutants that the suite must catch.")
    parser.add_argument("--only", nargs="+", help="just these")
    parser.add_argument("--list", action="store_true", help="name them and end")
    parser.add_argument("--schedules", type=int, default=SCHEDULES, help="before the schedules give up on a mutant")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    mutants = [by_name(name) for name in options.only] if options.only else list(MUTANTS)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:36} {mutant.mistake}")
        return
    with server() as url:
        verdicts = try_all(
            url,
            mutants,
            processes=options.processes,
            schedules=options.schedules,
            on_verdict=lambda verdict: print(line(verdict)),
        )
    missed = [verdict for verdict in verdicts if not verdict.caught]
    print(f"{len(verdicts)} mutants, {len(missed)} missed")
    sys.exit(1 if missed else 0)


def line(verdict: Verdict) -> str:
    """A verdict in one line."""
    mark = "caught" if verdict.caught else "MISSED"
    return f"{mark} {verdict.mutant.name:34} {verdict.seconds:5.1f} s  {verdict.by}: {verdict.sentence[:160]}"


if __name__ == "__main__":
    main()
