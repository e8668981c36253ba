"""Break the protocol on purpose and check that the tests fail. Called by: `prove.py`, and from the command line.

    python -m proof.mutants                       # all mutants
    python -m proof.mutants --only rescue-by-id   # one mutant, with the test that caught it
    python -m proof.mutants --list

First, Postgres must plan every statement of the mutant: a mutant that does not run proves nothing. Then it meets the
schedules in a separate process until the first violation; if there is none, the tests that should catch it; then all
tests of the kernel. Only an assertion, an invariant or a constraint counts (`viability.py`), and only if the schedule or
test that reports it is green without the mutant in the same run. A mutant that survives is a gap in the tests; one that
does not run is a defect of the mutant; one that meets other failures only is inconclusive. All three fail the run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from proof.mutants.kernel import HARMLESS, MUTANTS
from proof.mutants.mutations import Mutant
from proof.mutants.pytest_plugin import MARK, VARIABLE
from proof.mutants.viability import Report, report_of, report_of_surprise, why_it_does_not_run
from proof.schedules.play import Result, play_now
from proof.schedules.run import database, server
from proof.termination import end_children_on_sigterm

ROOT = Path(__file__).parents[2]
KERNEL_TESTS = ROOT / "tests" / "postgres" / "jobs"
RACES = ROOT / "tests" / "concurrency"
SCHEDULES = 400  # before the schedules give up on a mutant
PATIENCE = 900  # seconds for a run of tests or schedules: the machine may be busy
MOST_FAILURES = 10
NOTHING_COLLECTED = 5  # how pytest ends if all tests were left out
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
    found = [mutant for mutant in (*MUTANTS, HARMLESS) if mutant.name == name]
    if not found:
        raise SystemExit(f"there is no mutant {name!r}; see `python -m proof.mutants --list`")
    return found[0]


class Finding(NamedTuple):
    """What a schedule or a test has reported, and where: the seed, the id of the test, or None if it was neither."""

    report: Report
    sentence: str
    where: int | str | None


def try_out(
    mutant: Mutant,
    server_url: str,
    migrated_url: str,
    schedules: int = SCHEDULES,
    all_tests: Sequence[Path] = (KERNEL_TESTS,),
) -> Verdict:
    """Run the suite on the mutant. `migrated_url`: a database for its statements to be planned on."""
    began = time.monotonic()

    def verdict(caught: bool, by: str, sentence: str) -> Verdict:
        return Verdict(mutant, caught, by, sentence, time.monotonic() - began)

    broken = why_it_does_not_run(mutant, migrated_url)
    if broken is not None:
        return verdict(False, Report.BROKEN, broken)
    seeds = list(range(FIRST_SEED, FIRST_SEED + schedules))
    found: list[Finding] = []
    for by, meet in (
        ("schedules", lambda: _meet_schedules(mutant, server_url, seeds)),
        ("tests", lambda: _meet_tests(mutant, server_url, _tests_for(mutant))),
        ("all kernel tests", lambda: _meet_tests(mutant, server_url, all_tests)),
    ):
        found += meet()
        catching = _first(found, Report.CAUGHT)
        if catching is not None:
            anyway = _red_anyway(server_url, catching)
            if anyway is not None:
                return verdict(False, Report.INCONCLUSIVE, f"without any mutant: {anyway.sentence}")
            after = f", after {catching.where - FIRST_SEED + 1}" if isinstance(catching.where, int) else ""
            return verdict(True, f"{by}{after}", catching.sentence)
        if by == "schedules" and (broken_there := _first(found, Report.BROKEN)) is not None:
            return verdict(False, Report.BROKEN, broken_there.sentence)
    inconclusive = _first(found, Report.INCONCLUSIVE)
    if inconclusive is not None:
        return verdict(False, Report.INCONCLUSIVE, inconclusive.sentence)
    return verdict(False, "no assertion", found[0].sentence if found else "it survived")


def _first(found: Sequence[Finding], report: Report) -> Finding | None:
    return next((one for one in found if one.report == report), None)


def _red_anyway(server_url: str, catching: Finding) -> Finding | None:
    """What the catching schedule or test reports on the real kernel: if anything, it says nothing about the mutant."""
    if isinstance(catching.where, int):
        again = _meet_schedules(None, server_url, [catching.where])
    else:
        again = _meet_tests(None, server_url, [str(catching.where)])
    return next(iter(again), None)


# ---------------------------------------------------------------------------------------------------------------------
# The schedules
# ---------------------------------------------------------------------------------------------------------------------


def _meet_schedules(mutant: Mutant | None, server_url: str, seeds: list[int]) -> list[Finding]:
    """What they report, until the first that is conclusive."""
    context = multiprocessing.get_context("fork")
    answer: multiprocessing.Queue[list[Finding]] = context.Queue()
    child = context.Process(target=_play_mutated, args=(mutant, server_url, seeds, answer))
    child.start()
    try:
        found = answer.get(timeout=PATIENCE)
    except queue.Empty:
        found = [Finding(Report.INCONCLUSIVE, f"the schedules did not end within {PATIENCE} s", None)]
        child.kill()
    child.join()
    return found


def _play_mutated(
    mutant: Mutant | None, server_url: str, seeds: list[int], answer: multiprocessing.Queue[list[Finding]]
) -> None:
    found: list[Finding] = []

    def on_result(result: Result) -> bool:
        one = finding_of(result)
        if one is not None:
            found.append(one)
        return len(found) >= MOST_FAILURES or (one is not None and one.report != Report.INCONCLUSIVE)

    try:
        if mutant is not None:
            mutant.apply()
        with database(server_url) as url:
            play_now(url, seeds, on_result)
    except Exception as error:  # of the mutant's code, or of the machine
        found.append(Finding(_report_of_end(error), f"{type(error).__name__}: {error}", None))
    answer.put(found)


def _report_of_end(error: Exception) -> Report:
    """An error that ends the schedules is no report of theirs."""
    report = report_of(error)
    return Report.INCONCLUSIVE if report == Report.CAUGHT else report


def finding_of(result: Result) -> Finding | None:
    """What a schedule reports. After an error that says nothing about the mutant its violations may be consequences."""
    if not result.violations:
        return None
    assert result.execution is not None
    worst = Finding(Report.CAUGHT, str(result.violations[0]), result.seed)
    for event in result.execution.witness.of("error"):
        name = str(event.detail["error"]).partition(":")[0]
        report = report_of_surprise(name)
        if report == Report.BROKEN or (report == Report.INCONCLUSIVE and worst.report == Report.CAUGHT):
            worst = Finding(report, f"surprise: {event.detail['act']}: {event.detail['error']}", result.seed)
    return worst._replace(sentence=f"{worst.sentence} (seed {result.seed})")


# ---------------------------------------------------------------------------------------------------------------------
# The tests
# ---------------------------------------------------------------------------------------------------------------------


def _tests_for(mutant: Mutant) -> list[Path]:
    paths = [folder / f"{name}.py" for name in mutant.tests for folder in (KERNEL_TESTS, RACES)]
    return [path for path in paths if path.exists()]


def _meet_tests(mutant: Mutant | None, server_url: str, tests: Sequence[Path | str]) -> list[Finding]:
    """The failures of these tests on the mutant, until so many have failed that one of them must tell why."""
    if not tests:
        return []
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
            [*command, "-p", "proof.mutants.pytest_plugin", *map(str, tests)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [Finding(Report.INCONCLUSIVE, f"the tests did not end within {PATIENCE} s", None)]
    lines = [json.loads(line.removeprefix(MARK)) for line in done.stdout.splitlines() if line.startswith(MARK)]
    found = [Finding(Report(line["report"]), line["sentence"], line["where"]) for line in lines]
    if done.returncode not in (0, NOTHING_COLLECTED) and not found:
        return [Finding(Report.INCONCLUSIVE, (done.stdout + done.stderr).strip()[-300:], None)]
    return found


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
    """Try them out and print who noticed. Ends with 1 if one was not caught."""
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
    print(f"{len(verdicts)} mutants, {len(missed)} not caught")
    sys.exit(1 if missed else 0)


def line(verdict: Verdict) -> str:
    """A verdict in one line."""
    mark = "caught" if verdict.caught else "UNSURE" if verdict.by == Report.INCONCLUSIVE else "MISSED"
    return f"{mark} {verdict.mutant.name:34} {verdict.seconds:5.1f} s  {verdict.by}: {verdict.sentence[:160]}"
