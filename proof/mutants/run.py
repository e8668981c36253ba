"""Break the protocol on purpose and check that the tests fail. Called by: `prove.py`, and from the command line.

    python -m proof.mutants                       # all mutants
    python -m proof.mutants --only rescue-by-id   # one mutant, with the test that caught it
    python -m proof.mutants --list

First, Postgres must plan every statement of the mutant: a mutant that does not run proves nothing. Then it meets the
schedules in a separate process until the first violation; if there is none, the tests that should catch it; then all
tests of the kernel. Only an assertion, an invariant or a constraint counts (`viability.py`). A mutant that survives is
a gap in the tests; one that does not run is a defect of the mutant. Both fail the run.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from proof.mutants.kernel import MUTANTS
from proof.mutants.mutations import Mutant
from proof.mutants.pytest_plugin import BROKEN, CAUGHT, VARIABLE
from proof.mutants.viability import why_it_does_not_run
from proof.schedules.play import Result, play_now
from proof.schedules.run import HOW_TO_REPLAY, database, server
from proof.termination import end_children_on_sigterm

ROOT = Path(__file__).parents[2]
KERNEL_TESTS = ROOT / "tests" / "postgres" / "jobs"
RACES = ROOT / "tests" / "concurrency"
SCHEDULES = 400  # before the schedules give up on a mutant
PATIENCE = 900  # seconds for a run of tests or schedules: the machine may be busy
MOST_FAILURES = 10
BROKEN_SQL_ERRORS = ("SyntaxError", "Undefined", "InvalidColumnReference", "DatatypeMismatch", "AmbiguousColumn")
FIRST_SEED = 0  # the seeds that `make prove` has just played on the real kernel


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a mutant was caught, by what, and how."""

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


def try_out(mutant: Mutant, server_url: str, migrated_url: str, schedules: int = SCHEDULES) -> Verdict:
    """Run the suite on the mutant. `migrated_url`: a database for its statements to be planned on."""
    began = time.monotonic()

    def verdict(caught: bool, by: str, sentence: str) -> Verdict:
        return Verdict(mutant, caught, by, sentence, time.monotonic() - began)

    broken = why_it_does_not_run(mutant, migrated_url)
    if broken is not None:
        return verdict(False, "it does not run", broken)
    seeds = list(range(FIRST_SEED, FIRST_SEED + schedules))
    seen = _meet_schedules(mutant, server_url, seeds)
    if seen is not None and not seen.runs:
        return verdict(False, "it does not run", seen.violation)
    if seen is not None:
        _refuse_if_red_anyway(server_url, seeds[seen.schedules - 1])
        return verdict(True, f"schedules, after {seen.schedules}", seen.violation)
    failed = Failures()
    for by, paths in (("tests", _tests_for(mutant)), ("all kernel tests", [KERNEL_TESTS])):
        failed = _meet_tests(mutant, server_url, paths)
        if failed.caught:
            return verdict(True, by, failed.caught[0])
    return verdict(False, "no assertion", failed.broken[0] if failed.broken else "it survived")


# ---------------------------------------------------------------------------------------------------------------------
# The schedules
# ---------------------------------------------------------------------------------------------------------------------


def _refuse_if_red_anyway(server_url: str, seed: int) -> None:
    """A schedule that is red on the real kernel too says nothing about a mutant."""
    seen = _meet_schedules(None, server_url, [seed])
    if seen is not None:
        raise SystemExit(f"without any mutant: {seen.violation}; replay: {HOW_TO_REPLAY} {seed}")


class Seen(NamedTuple):
    """The first violation of the schedules, after how many of them, and whether the mutant runs at all."""

    schedules: int
    violation: str
    runs: bool


def _meet_schedules(mutant: Mutant | None, server_url: str, seeds: list[int]) -> Seen | None:
    """The first violation; None if there was none."""
    context = multiprocessing.get_context("fork")
    answer: multiprocessing.Queue[Any] = context.Queue()
    child = context.Process(target=_play_mutated, args=(mutant, server_url, seeds, answer))
    child.start()
    seen = answer.get(timeout=PATIENCE)
    child.join()
    if isinstance(seen, Exception):
        if mutant is None:
            raise seen
        return Seen(0, f"{type(seen).__name__}: {seen}", runs=False)
    return seen


def _play_mutated(mutant: Mutant | None, server_url: str, seeds: list[int], answer: multiprocessing.Queue[Any]) -> None:
    seen: list[Seen] = []
    played = 0

    def on_result(result: Result) -> bool:
        nonlocal played
        played += 1
        found = [str(violation) for violation in result.violations]
        if found:
            broken = [sentence for sentence in found if any(name in sentence for name in BROKEN_SQL_ERRORS)]
            seen.append(Seen(played, f"{(broken or found)[0]} (seed {result.seed})", runs=not broken))
        return bool(seen)

    try:
        if mutant is not None:
            mutant.apply()
        with database(server_url) as url:
            play_now(url, seeds, on_result)
    except Exception as error:  # the code of the mutant is broken
        answer.put(error)
    else:
        answer.put(seen[0] if seen else None)


# ---------------------------------------------------------------------------------------------------------------------
# The tests
# ---------------------------------------------------------------------------------------------------------------------


def _tests_for(mutant: Mutant) -> list[Path]:
    paths = [folder / f"{name}.py" for name in mutant.tests for folder in (KERNEL_TESTS, RACES)]
    return [path for path in paths if path.exists()]


@dataclass(frozen=True, slots=True)
class Failures:
    """The tests that failed: by an assertion or a constraint, and because something does not run."""

    caught: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def _meet_tests(mutant: Mutant | None, server_url: str, paths: Sequence[Path]) -> Failures:
    """Run these tests on the mutant, until so many have failed that one of them must tell why."""
    if not paths:
        return Failures()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "-m",
        "more or not more",
        "--tb=no",
        f"--maxfail={MOST_FAILURES}",
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HOLDFAST_TEST_DATABASE_URL": server_url}
    environment.pop(VARIABLE, None)
    if mutant is not None:
        environment[VARIABLE] = mutant.name
    try:
        done = subprocess.run(
            [*command, "-p", "proof.mutants.pytest_plugin", *map(str, paths)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Failures(broken=[f"the tests did not end within {PATIENCE} s"])
    lines = done.stdout.splitlines()
    failures = Failures(
        [line.removeprefix(f"{CAUGHT} ") for line in lines if line.startswith(CAUGHT)],
        [line.removeprefix(f"{BROKEN} ") for line in lines if line.startswith(BROKEN)],
    )
    if done.returncode != 0 and not (failures.caught or failures.broken):
        return Failures(broken=[(done.stdout + done.stderr).strip()[-300:]])
    return failures


def suite_is_green(server_url: str) -> str | None:
    """Without any mutant the same tests must pass, or red means nothing: the first failure, or None."""
    failures = _meet_tests(None, server_url, [KERNEL_TESTS] if KERNEL_TESTS.exists() else [])
    return next(iter(failures.caught + failures.broken), None)


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
    # One database for all, made before the threads: Alembic migrates one database at a time.
    with database(server_url) as url, ThreadPoolExecutor(processes) as threads:
        for verdict in threads.map(lambda mutant: try_out(mutant, server_url, url, schedules), mutants):
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
    end_children_on_sigterm()
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
