"""`make prove`: schedules, processes, recovery, mutants and model; writes the numbers to `proof/results.json`.

    python -m proof.prove                          # everything
    python -m proof.prove --schedules 500 --only schedules processes

Exits with 1 if an invariant was violated, a kind of event never happened, a mutant survived, or the model checker found
an unexpected result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from proof import recovery
from proof.model import tlc
from proof.mutants.run import MUTANTS, Verdict, try_all
from proof.processes import run as process_schedules
from proof.schedules.run import HOW_TO_REPLAY, Summary, alike, play_many, server
from proof.termination import end_children_on_sigterm
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

RESULTS = Path(__file__).parent / "results.json"
SCHEDULES = 10_000
PROCESSES = 1_000
PARTS = ("schedules", "processes", "recovery", "mutants", "tlc")
console = Console()


@dataclass(slots=True)
class Proof:
    """The report: numbers for the file, and one sentence for each failure."""

    numbers: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def machine(server_url: str) -> dict[str, Any]:
    """The machine on which the numbers were measured."""
    with psycopg.connect(server_url) as conn:
        row = conn.execute("SHOW server_version").fetchone()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "postgres": row[0] if row else "?",
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


# ---------------------------------------------------------------------------------------------------------------------
# The parts
# ---------------------------------------------------------------------------------------------------------------------


def prove_schedules(proof: Proof, server_url: str, count: int, first: int, processes: int) -> None:
    """Random schedules on real Postgres, and the checker over both logs."""
    console.rule(f"{count} schedules on {processes} processes")
    with _progress() as progress:
        task = progress.add_task("schedules", total=count)
        summary = play_many(
            server_url, list(range(first, first + count)), processes, lambda played: progress.update(task, completed=played)
        )
        progress.update(task, completed=count)
    rate = summary.played / summary.seconds
    proof.numbers |= {
        "schedules_in_process": summary.played,
        "schedules_first_seed": first,
        "schedules_per_second": round(rate, 1),
        "schedules_events": summary.events,
        "schedules_exercised": dict(sorted(summary.exercised.items())),
        "violations": len(summary.violations),
    }
    console.print(f"{summary.played} schedules, {summary.events} events, {rate:.1f}/s, {len(summary.violations)} violations")
    _blame_schedules(proof, summary)


def _blame_schedules(proof: Proof, summary: Summary) -> None:
    for pattern, seeds in alike(summary.violations):
        proof.wrong.append(f"{len(seeds)} × {pattern}  (replay: {HOW_TO_REPLAY} {seeds[0]})")
    if summary.missing:
        proof.wrong.append(f"never exercised, so nothing is proven about it: {', '.join(summary.missing)}")


def prove_processes(proof: Proof, count: int, first: int, stages: int) -> None:
    """Real worker processes under real faults, and the checker over both logs."""
    console.rule(f"{count} schedules of real processes on {stages} stages")
    with _progress() as progress:
        task = progress.add_task("processes", total=count)
        seeds = list(range(first, first + count))
        summary = process_schedules.play_many(seeds, stages, lambda played: progress.update(task, completed=played))
    rate = summary.played / summary.seconds
    proof.numbers |= {
        "schedules_processes": summary.played,
        "schedules_processes_per_second": round(rate, 1),
        "schedules_processes_exercised": dict(sorted(summary.exercised.items())),
        "violations_processes": len(summary.violations),
    }
    console.print(f"{summary.played} schedules, {rate:.1f}/s, {len(summary.violations)} violations")
    for pattern, seeds in alike(summary.violations):
        proof.wrong.append(f"{len(seeds)} × {pattern}  (replay: {process_schedules.HOW_TO_REPLAY} {seeds[0]})")
    if summary.missing:
        proof.wrong.append(f"never exercised in processes, so nothing is proven about it: {', '.join(summary.missing)}")


def prove_recovery(proof: Proof) -> None:
    """The time until a job runs again, with default settings."""
    console.rule("recovery")
    figures = recovery.measure(lambda name, seconds: console.print(f"{name}: {seconds} s (goal: {recovery.GOALS[name]} s)"))
    proof.numbers |= figures
    proof.wrong += recovery.too_slow(figures)


def prove_mutants(proof: Proof, server_url: str, processes: int) -> None:
    """Break the protocol on purpose, and check that the tests fail."""
    console.rule(f"{len(MUTANTS)} mutants")
    verdicts: list[Verdict] = []
    with _progress() as progress:
        task = progress.add_task("mutants", total=len(MUTANTS))

        def on_verdict(verdict: Verdict) -> None:
            verdicts.append(verdict)
            progress.advance(task)
            if not verdict.caught:
                progress.console.print(f"missed: {verdict.mutant.name} ({verdict.by}: {verdict.sentence})", highlight=False)

        try_all(server_url, processes=processes, on_verdict=on_verdict)
    missed = [verdict for verdict in verdicts if not verdict.caught]
    proof.numbers |= {
        "mutants_total": len(verdicts),
        "mutants_missed": len(missed),
        "mutants": [_as_row(verdict) for verdict in verdicts],
    }
    proof.wrong += [f"the mutant {verdict.mutant.name} was not caught: {verdict.by}: {verdict.sentence}" for verdict in missed]
    console.print(_table_of(verdicts))


def _as_row(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.mutant.name,
        "mistake": verdict.mutant.mistake,
        "caught": verdict.caught,
        "by": verdict.by,
        "what": verdict.sentence[:300],
    }


def _table_of(verdicts: Sequence[Verdict]) -> Table:
    table = Table("mutant", "mistake", "caught by", "violation", expand=True)
    for verdict in verdicts:
        style = None if verdict.caught else "bold red"
        table.add_row(verdict.mutant.name, verdict.mutant.mistake, verdict.by, verdict.sentence[:90], style=style)
    return table


def prove_model(proof: Proof) -> None:
    """The model checker: the design holds, and each mistake breaks what it should."""
    console.rule("the model")
    try:
        results = tlc.check()
    except tlc.CannotCheck as missing:
        proof.wrong.append(f"the model was not checked: {missing}")
        return
    console.print(tlc.table(results))
    proof.numbers |= results.numbers
    proof.wrong += results.wrong


# ---------------------------------------------------------------------------------------------------------------------
# The report
# ---------------------------------------------------------------------------------------------------------------------


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console)


def write(proof: Proof, path: Path = RESULTS) -> None:
    """Put the numbers into the file, beside those that others have put there."""
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | proof.numbers, indent=2, ensure_ascii=False) + "\n")


def summarise(proof: Proof, seconds: float) -> None:
    """The last screen."""
    table = Table("what", "result", title=f"Proof, {seconds / 60:.1f} minutes")
    for name in (
        "schedules_in_process",
        "schedules_per_second",
        "violations",
        "schedules_processes",
        "schedules_processes_per_second",
        "violations_processes",
        *recovery.GOALS,
        "mutants_total",
        "mutants_missed",
        "tlc_distinct_states",
    ):
        if proof.numbers.get(name) is not None:
            table.add_row(name.replace("_", " "), f"{proof.numbers[name]:,}")
    console.print(table)
    for sentence in proof.wrong:
        console.print(f"[bold red]✗[/] {sentence}", highlight=False)
    if not proof.wrong:
        console.print("[bold green]✓[/] all parts passed")
    console.print(f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


def main() -> None:
    """Everything, in order."""
    parser = argparse.ArgumentParser(prog="python -m proof.prove", description="Schedules, processes, mutants and model.")
    parser.add_argument("--schedules", type=int, default=SCHEDULES, help=f"how many (default: {SCHEDULES})")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--process-schedules", type=int, default=PROCESSES, help=f"how many (default: {PROCESSES})")
    parser.add_argument(
        "--stages",
        type=int,
        default=process_schedules.STAGES,
        help=f"of process schedules (default: {process_schedules.STAGES})",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="just these parts")
    options = parser.parse_args()
    end_children_on_sigterm()
    began, proof = time.monotonic(), Proof()
    with server() as url:
        proof.numbers["machine"] = machine(url)
        if "schedules" in options.only:
            prove_schedules(proof, url, options.schedules, options.first, options.processes)
    if "processes" in options.only:
        prove_processes(proof, options.process_schedules, options.first, options.stages)
    if "recovery" in options.only:
        prove_recovery(proof)
    if "mutants" in options.only:
        with server() as url:
            prove_mutants(proof, url, options.processes)
    if "tlc" in options.only:
        prove_model(proof)
    write(proof)
    summarise(proof, time.monotonic() - began)
    sys.exit(1 if proof.wrong else 0)


if __name__ == "__main__":
    main()
