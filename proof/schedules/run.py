"""The command of the schedules: many on several processes, or one in full.

python -m proof.schedules --schedules 10000 --processes 2
python -m proof.schedules --seed 123
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from proof.checker.check import never_exercised
from proof.checker.records import Execution
from proof.schedules.play import Result, play_now
from proof.termination import end_children_on_sigterm
from psycopg.conninfo import conninfo_to_dict

from holdfast.database import migrate
from holdfast.database.embedded import THROWAWAY, EmbeddedPostgres

HOW_TO_REPLAY = "python -m proof.schedules --seed"
MOST_SHOWN = 20


@dataclass(slots=True)
class Summary:
    """What many schedules came to."""

    played: int = 0
    events: int = 0
    seconds: float = 0.0
    violations: list[tuple[int, str]] = field(default_factory=list)
    exercised: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.played += 1
        self.events += result.events
        self.violations += [(result.seed, str(violation)) for violation in result.violations]
        self.exercised += result.exercised

    def merge(self, other: Summary) -> None:
        self.played += other.played
        self.events += other.events
        self.violations += other.violations
        self.exercised += other.exercised

    @property
    def missing(self) -> list[str]:
        """I22: what should have happened at least once and did not."""
        return never_exercised(self.exercised)


# ---------------------------------------------------------------------------------------------------------------------
# A database for each process
# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def server() -> Iterator[str]:
    """The address of a server that may be used at will: the one that the tests use, or one of our own."""
    given = os.environ.get("HOLDFAST_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with (
        TemporaryDirectory(prefix="holdfast-proof-") as folder,
        EmbeddedPostgres(Path(folder), settings=THROWAWAY, on_message=lambda _: None) as postgres,
    ):
        yield postgres.url


@contextmanager
def database(server_url: str) -> Iterator[str]:
    """A migrated database on the server, gone afterwards."""
    name = f"holdfast_proof_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    url = with_database(server_url, name)
    try:
        migrate.migrate(url)
        yield url
    finally:
        with psycopg.connect(server_url, autocommit=True) as conn:
            conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    info = conninfo_to_dict(url)
    secret = f":{info['password']}" if info.get("password") else ""
    return f"postgresql://{info.get('user', '')}{secret}@{info.get('host', '127.0.0.1')}:{info.get('port', 5432)}/{name}"


# ---------------------------------------------------------------------------------------------------------------------
# Many
# ---------------------------------------------------------------------------------------------------------------------


def _play_share(server_url: str, seeds: list[int], done: multiprocessing.Queue[Summary | int]) -> None:
    summary = Summary()

    def on_result(result: Result) -> bool:
        summary.add(result)
        if summary.played % 50 == 0:
            done.put(summary.played)
        return False

    with database(server_url) as url:
        play_now(url, seeds, on_result)
    done.put(summary)


def play_many(
    server_url: str, seeds: list[int], processes: int = 1, on_progress: Callable[[int], None] = lambda _: None
) -> Summary:
    """Play the seeds on so many processes, each with a database of its own."""
    began = time.monotonic()
    context = multiprocessing.get_context("fork")
    done: multiprocessing.Queue[Summary | int] = context.Queue()
    shares = [seeds[number::processes] for number in range(processes)]
    children = [context.Process(target=_play_share, args=(server_url, share, done)) for share in shares]
    for child in children:
        child.start()
    total, finished, played = Summary(), 0, 0
    while finished < processes:
        try:
            news = done.get(timeout=60)
        except Exception as silence:
            if not any(child.is_alive() for child in children):
                raise RuntimeError("a process that played schedules died; see its error above") from silence
            continue
        if isinstance(news, Summary):
            total.merge(news)
            finished += 1
        else:
            played += 50
            on_progress(played)
    for child in children:
        child.join()
    total.seconds = time.monotonic() - began
    total.violations.sort()
    return total


# ---------------------------------------------------------------------------------------------------------------------
# One, in full
# ---------------------------------------------------------------------------------------------------------------------


def show(result: Result) -> None:
    """The whole execution of a schedule."""
    assert result.execution is not None
    short = Shortener(result.execution)
    print(f"seed {result.seed}, theme {result.theme}, {result.events} events")
    for event in result.execution.witness.events:
        names = [f"job {event.job}" if event.job else "", short(event.attempt), short(event.worker)]
        detail = {key: value for key, value in event.detail.items() if key not in ("claim", "spec", "clock", "lease", "until")}
        what = event.what if event.outcome == "ok" else f"{event.what}: {event.outcome}"
        spec = event.detail.get("spec")
        print(f"{event.begun:4}-{event.acked:<4} {what:22} {' '.join(filter(None, names))} {short(str(detail))} {spec or ''}")
    print("\nThe system's account:")
    for job in result.execution.records.jobs:
        print(f"  job {job.id}: {job}")
        for move in result.execution.moves.get(job.id, ()):
            attempt = f"attempt {move.attempt_no} {short(move.attempt_id)} {short(move.worker_id)}" if move.attempt_id else ""
            reason = f"{move.actor or ''} {move.reason or ''} {move.detail or ''}"
            print(f"    {move.at:%S.%f} x{move.xid} {move.move} → {move.state} {attempt} {reason}")
    print()


class Shortener:
    """Long ids as short names."""

    def __init__(self, execution: Execution) -> None:
        self._names: dict[str, str] = {}
        for event in execution.witness.events:
            if event.worker:
                self._names.setdefault(event.worker, f"W{len(self._names)}")
            if event.attempt:
                self._names.setdefault(event.attempt, f"A{len(self._names)}")

    def __call__(self, text: str | None) -> str:
        if text is None:
            return ""
        for long, short in self._names.items():
            text = text.replace(long, short)
        return text


def main() -> None:
    """Play, and say what came of it. Ends with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m proof.schedules", description="Seeded random schedules on real Postgres.")
    parser.add_argument("--schedules", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="play this one again, and show all of it")
    parser.add_argument("--repeat", type=int, default=1, help="with --seed: how often")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    end_children_on_sigterm()
    seeds = [options.seed] * options.repeat if options.seed is not None else []
    with server() as url:
        if seeds:
            sys.exit(_replay(url, seeds))
        many = list(range(options.first, options.first + options.schedules))
        summary = play_many(url, many, options.processes, lambda played: print(f"\r{played}", end="", file=sys.stderr))
    sys.exit(_report(summary))


def _replay(url: str, seeds: list[int]) -> int:
    bad = 0

    def on_result(result: Result) -> bool:
        nonlocal bad
        show(result)
        for violation in result.violations:
            print(f"VIOLATED {violation}")
        bad += bool(result.violations)
        return False

    with database(url) as own:
        play_now(own, seeds, on_result)
    print(f"{len(seeds)} played, {bad} with violations")
    return 1 if bad else 0


def _report(summary: Summary) -> int:
    rate = summary.played / max(summary.seconds, 0.001)
    print(f"\n{summary.played} schedules, {summary.events} events, {summary.seconds:.0f} s, {rate:.1f}/s")
    for pattern, seeds in alike(summary.violations):
        print(f"  {len(seeds)} × {pattern}\n      replay: {HOW_TO_REPLAY} {seeds[0]}   (also {seeds[1:5]})")
    if summary.missing:
        print(f"never exercised: {', '.join(summary.missing)}")
    print(f"{len(summary.violations)} violations")
    return 1 if summary.violations or summary.missing else 0


def alike(violations: list[tuple[int, str]]) -> list[tuple[str, list[int]]]:
    """Violations that differ only in numbers and ids, with the seeds that show them; the most frequent first."""
    grouped: dict[str, list[int]] = {}
    for seed, sentence in violations:
        grouped.setdefault(re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+(, \d+)*", "#", sentence)[:300], []).append(seed)
    return sorted(grouped.items(), key=lambda item: -len(item[1]))[:MOST_SHOWN]
