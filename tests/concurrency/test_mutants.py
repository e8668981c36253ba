"""Every mutant still applies to the code as it is: one that changes nothing would be caught by nobody, and prove nothing.

That the suite catches them is shown by `make prove`, which takes minutes.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from proof.mistakes import MUTANTS
from proof.mutations import DoesNotApply, Schema, Text

ROOT = Path(__file__).parents[2]
APPLY_EACH = """
import os, sys
from proof.mistakes import MUTANTS
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


def test_every_mutant_applies_to_the_code_as_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", APPLY_EACH], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_there_are_enough_of_them_and_each_has_its_own_name_and_mistake() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)
    mistakes = Counter(mutant.mistake for mutant in MUTANTS)

    assert len(MUTANTS) >= 28
    assert max(names.values()) == max(mistakes.values()) == 1


def test_every_mutant_names_tests_that_exist() -> None:
    named = {name for mutant in MUTANTS for name in mutant.tests}

    missing = {name for name in named if not (ROOT / "tests" / "postgres" / "jobs" / f"{name}.py").exists()}

    assert missing == set()


def test_a_piece_that_is_not_there_is_no_mutation() -> None:
    with pytest.raises(DoesNotApply, match="does not contain"):
        Text("finish.FINISH", "DROP DATABASE", "").apply()


def test_schema_mutants_name_what_the_schema_has(database: str) -> None:
    import psycopg

    statements = [change.sql for mutant in MUTANTS for change in mutant.changes if isinstance(change, Schema)]

    with psycopg.connect(database) as conn:
        for statement in statements:
            conn.execute(statement)
            conn.rollback()
