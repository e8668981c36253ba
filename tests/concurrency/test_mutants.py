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
from proof.mutants.kernel import MUTANTS
from proof.mutants.mutations import Change, Code, DoesNotApply, Mutant, Schema, Text, Whole
from proof.mutants.run import KERNEL_TESTS, RACES, try_out
from proof.mutants.viability import is_broken, why_it_does_not_run

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


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (AssertionError(), False),
        (ClaimLost(1, "attempt", "finish"), False),
        (psycopg.errors.UniqueViolation(), False),
        (psycopg.errors.DeadlockDetected(), False),
        (psycopg.errors.SyntaxError(), True),
        (psycopg.errors.UndefinedColumn(), True),
        (psycopg.errors.InvalidColumnReference(), True),
        (TypeError(), True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_only_assertions_invariants_and_constraints_catch_a_mutant(error: Exception, broken: bool) -> None:
    assert is_broken(error) is broken
