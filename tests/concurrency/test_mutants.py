"""Every mutant still applies to the current code: one that changes nothing proves nothing.

That the suite catches them is shown by `make prove`, which takes minutes.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proof.checker.check import check
from proof.checker.records import Execution, Records
from proof.checker.witness import Witness
from proof.mutants import run
from proof.mutants.kernel import HARMLESS, MUTANTS
from proof.mutants.mutations import Change, Code, DoesNotApply, Mutant, Schema, Text, Whole
from proof.mutants.pytest_plugin import LEFT_OUT
from proof.mutants.run import KERNEL_TESTS, RACES, Finding, finding_of, try_out
from proof.mutants.viability import Report, report_of, why_it_does_not_run
from proof.schedules.play import Result
from psycopg_pool import PoolTimeout, TooManyRequests

from holdfast.errors import ClaimLost

ROOT = Path(__file__).parents[2]
APPLY_EACH = """
import os, sys
from proof.mutants.kernel import MUTANTS
from proof.mutants.run import KERNEL_TESTS, RACES
for mutant in MUTANTS:
    child = os.fork()
    if not child:
        try:
            mutant.apply()
        except Exception as error:
            print(f"{mutant.name}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_every_mutant_applies_to_the_current_code() -> None:
    done = subprocess.run([sys.executable, "-c", APPLY_EACH], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_mutants_have_unique_names_and_changes() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)
    mistakes = Counter(mutant.mistake for mutant in MUTANTS)

    assert len(MUTANTS) >= 28
    assert max(names.values()) == max(mistakes.values()) == 1


def test_every_mutant_names_tests_that_exist() -> None:
    named = {name for mutant in MUTANTS for name in mutant.tests}

    missing = {name for name in named if not any((folder / f"{name}.py").exists() for folder in (KERNEL_TESTS, RACES))}

    assert missing == set()
    assert not named & {name.removesuffix(".py") for name in LEFT_OUT}


def test_text_that_is_missing_cannot_be_mutated() -> None:
    with pytest.raises(DoesNotApply, match="does not contain"):
        Text("finish.FINISH", "DROP DATABASE", "").apply()


def test_function_with_other_arguments_cannot_replace_the_original() -> None:
    async def claim_tied(conn: Any, worker_id: Any, ids: Any, *, soon: bool = False) -> None: ...

    with pytest.raises(DoesNotApply, match="claim_tied has other arguments: got an unexpected keyword argument 'begins'"):
        Code("claim.claim_tied", lambda _: claim_tied).apply()


@pytest.mark.more
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_runs(database: str, mutant: Mutant) -> None:
    """A mutant whose SQL cannot be planned is caught by everything and proves nothing."""
    assert why_it_does_not_run(mutant, database) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Whole("claim.CLAIM", "SELECT 1, FROM holdfast.jobs"), "claim.CLAIM: SyntaxError"),
        (Schema("ALTER TABLE holdfast.lock_holders DROP CONSTRAINT lock_holders_pkey"), "InvalidColumnReference"),
        (Text("claim.CLAIM", "no such text", ""), "DoesNotApply"),
    ],
    ids=["syntax", "missing index behind ON CONFLICT", "text that is not there"],
)
def test_mutant_that_does_not_run_is_detected(database: str, change: Change, reason: str) -> None:
    found = why_it_does_not_run(Mutant("broken", "it does not run", (change,)), database)

    assert found is not None
    assert reason in found


@pytest.mark.more
def test_mutant_whose_code_raises_is_reported_and_ends_no_other(database: str, server: str) -> None:
    def raising(original: Any) -> Any:
        async def finish(*_: Any) -> None:
            raise TypeError("takes 5 arguments but 6 were given")

        return finish

    verdict = try_out(Mutant("broken", "it does not run", (Code("finish.finish", raising),)), server, database, schedules=20)

    assert (verdict.caught, verdict.by) == (False, "it does not run")
    assert "takes 5 arguments" in verdict.sentence


@pytest.mark.more
def test_mutant_of_the_schema_that_breaks_nothing_is_missed(database: str, server: str) -> None:
    """Tests that compare the schema with itself fail for every such mutant."""
    all_tests = [KERNEL_TESTS / name for name in (*LEFT_OUT, "test_claim.py")]
    assert all(path.exists() for path in all_tests)

    verdict = try_out(HARMLESS, server, database, schedules=5, all_tests=all_tests)

    assert (verdict.caught, verdict.by, verdict.sentence) == (False, "no assertion", "it survived")


@pytest.mark.parametrize("where", [7, "tests/test_x.py::test_y"], ids=["schedule", "test"])
@pytest.mark.parametrize(
    ("without_mutant", "caught", "by"),
    [([], True, {7: "schedules, after 8", "tests/test_x.py::test_y": "tests"}), (["it fails"], False, None)],
    ids=["green", "red"],
)
def test_what_catches_a_mutant_is_green_without_it(
    monkeypatch: pytest.MonkeyPatch, where: int | str, without_mutant: list[str], caught: bool, by: dict[int | str, str] | None
) -> None:
    replayed: list[Any] = []

    def meet(mutant: Mutant | None, _: str, what: Any) -> list[Finding]:
        if mutant is None:
            replayed.extend(what)
            return [Finding(Report.CAUGHT, sentence, where) for sentence in without_mutant]
        return [Finding(Report.CAUGHT, "it fails", where)]

    def meet_nothing(*_: Any) -> list[Finding]:
        return []

    monkeypatch.setattr(run, "why_it_does_not_run", lambda *_: None)
    monkeypatch.setattr(run, "_meet_schedules", meet if where == 7 else meet_nothing)
    monkeypatch.setattr(run, "_meet_tests", meet_nothing if where == 7 else meet)

    verdict = try_out(MUTANTS[0], "server", "database")

    assert replayed == [where]
    assert (verdict.caught, verdict.by) == (caught, by[where] if by else "inconclusive")
    assert verdict.sentence == ("it fails" if caught else "without any mutant: it fails")


@pytest.mark.parametrize(
    ("reports", "by", "sentence"),
    [
        ([Report.INCONCLUSIVE], "inconclusive", "0"),
        ([Report.BROKEN], "no assertion", "0"),
        ([Report.BROKEN, Report.INCONCLUSIVE], "inconclusive", "1"),
        ([Report.INCONCLUSIVE, Report.CAUGHT], "tests", "1"),
        ([], "no assertion", "it survived"),
    ],
)
def test_other_failures_of_tests_do_not_catch_a_mutant(
    monkeypatch: pytest.MonkeyPatch, reports: list[Report], by: str, sentence: str
) -> None:
    def meet(mutant: Mutant | None, *_: Any) -> list[Finding]:
        return [Finding(report, f"{number}", f"test {number}") for number, report in enumerate(reports) if mutant]

    monkeypatch.setattr(run, "why_it_does_not_run", lambda *_: None)
    monkeypatch.setattr(run, "_meet_schedules", lambda *_: [])
    monkeypatch.setattr(run, "_meet_tests", meet)

    verdict = try_out(MUTANTS[0], "server", "database")

    assert (verdict.caught, verdict.by, verdict.sentence) == (by == "tests", by, sentence)


@pytest.mark.parametrize(
    ("error", "report"),
    [
        (AssertionError(), Report.CAUGHT),
        (pytest.fail.Exception("DID NOT RAISE ClaimLost"), Report.CAUGHT),
        (pytest.fail.Exception("Timeout (>900.0s) from pytest-timeout."), Report.INCONCLUSIVE),
        (psycopg.errors.UniqueViolation(), Report.CAUGHT),
        (psycopg.errors.CheckViolation(), Report.CAUGHT),
        (psycopg.errors.LockNotAvailable(), Report.CAUGHT),
        (psycopg.errors.SyntaxError(), Report.BROKEN),
        (psycopg.errors.UndefinedColumn(), Report.BROKEN),
        (psycopg.errors.InvalidColumnReference(), Report.BROKEN),
        (TypeError(), Report.BROKEN),
        (TypeError("cannot unpack non-iterable NoneType object"), Report.BROKEN),
        (ValueError("not enough values to unpack (expected 1, got 0)"), Report.INCONCLUSIVE),
        (ValueError(), Report.INCONCLUSIVE),
        (ClaimLost(1, "attempt", "finish"), Report.INCONCLUSIVE),
        (TimeoutError(), Report.INCONCLUSIVE),
        (OSError(), Report.INCONCLUSIVE),
        (RuntimeError(), Report.INCONCLUSIVE),
        (PoolTimeout(), Report.INCONCLUSIVE),
        (TooManyRequests(), Report.INCONCLUSIVE),
        (psycopg.OperationalError("connection refused"), Report.INCONCLUSIVE),
        (psycopg.errors.TooManyConnections(), Report.INCONCLUSIVE),
        (psycopg.errors.QueryCanceled(), Report.INCONCLUSIVE),
        (psycopg.errors.DeadlockDetected(), Report.INCONCLUSIVE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_only_assertions_invariants_and_constraints_catch_a_mutant(error: Exception, report: Report) -> None:
    assert report_of(error) is report


@pytest.mark.parametrize(
    ("file", "report"), [(ROOT / "tests" / "x.py", Report.CAUGHT), (ROOT / "src" / "x.py", None)], ids=["test", "product"]
)
@pytest.mark.parametrize(
    ("unpacking", "otherwise"), [("(row,) = []", Report.INCONCLUSIVE), ("first, second = None", Report.BROKEN)]
)
def test_missing_row_catches_a_mutant_if_a_test_unpacks_it(
    unpacking: str, otherwise: Report, file: Path, report: Report | None
) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        exec(compile(unpacking, file, "exec"))

    assert report_of(raised.value) is (report or otherwise)


@pytest.mark.parametrize(
    ("error", "report"),
    [
        ("AssertionError: 1", Report.CAUGHT),
        ("LockNotAvailable: canceling statement", Report.CAUGHT),
        ("UniqueViolation: duplicate key", Report.CAUGHT),
        ("DeadlockDetected: deadlock detected", Report.CAUGHT),
        ("ClaimLost: attempt 1", Report.CAUGHT),
        ("UndefinedColumn: column x", Report.BROKEN),
        ("DatabaseProblem: connection refused", Report.INCONCLUSIVE),
        ("WaitTimedOut: job 1", Report.INCONCLUSIVE),
        ("OperationalError: connection refused", Report.INCONCLUSIVE),
        ("AdminShutdown: terminating connection", Report.INCONCLUSIVE),
        ("Stuck: end, sweep", Report.INCONCLUSIVE),
    ],
)
def test_schedule_with_an_error_of_the_machine_does_not_catch_a_mutant(error: str, report: Report) -> None:
    """What it violates besides may be a consequence."""
    witness = Witness()
    witness.note("claims", witness.tick(), got=2, limit=1)
    witness.note("error", witness.tick(), act="end", error=error)
    execution = Execution(Records(), witness)
    violations = [violation for violation in check(execution) if violation.invariant == "surprise"]
    assert len(violations) == 2

    found = finding_of(Result(7, "plain", violations[::-1], Counter(), 2, 0, execution))

    assert found is not None
    assert (found.report, found.where) == (report, 7)
    assert found.sentence == f"surprise: {'a claim for 1 jobs took 2' if report == Report.CAUGHT else f'end: {error}'} (seed 7)"


def test_schedule_without_a_violation_says_nothing() -> None:
    assert finding_of(Result(7, "plain", [], Counter(), 0, 0, Execution(Records(), Witness()))) is None
