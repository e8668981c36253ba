"""Check that a mutant runs, and which failures count as catching it. Called by: `run.py`, its plugin, tests.

A mutant whose SQL cannot be planned makes every test fail and proves nothing. A mutant is caught if an assertion, an
invariant of the checker or a constraint of the database reports a wrong result, not if its own code is broken. A row
that is missing when a test unpacks it, or a lock timeout of a statement that must not wait, is such a report.

Every other failure is inconclusive: a timeout, a lost connection or a full server can happen to the real kernel too, on a
busy machine. In a test, so can an error of the product: `ClaimLost` is also what a worker gets whose lease ends while the
machine is busy. In a schedule the seed controls the clock and the order of the statements, so there an error of the
product and a deadlock count.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proof.mutants.mutations import Mutant, Schema
from proof.mutants.statements import can_be_prepared, not_planned, statements

from holdfast import errors

TESTS = Path(__file__).parents[2] / "tests"
# SQLSTATE classes that tell of broken SQL: feature not supported, invalid statement name, syntax error or undefined object.
BROKEN_SQL = ("0A", "26", "42")
BROKEN_CODE = (TypeError, AttributeError, NameError, ImportError, SyntaxError, KeyError, IndexError, UnboundLocalError)
# Integrity constraint violation: the trigger `legal_moves_only` raises it too.
CONSTRAINT = "23"
MISSING_ROW = re.compile(r"not enough values to unpack|cannot unpack non-iterable NoneType object")
TIMEOUT = "Timeout (>"  # pytest-timeout reports it with the same class as an expected error that was not raised
# Errors of the product that tell of the connection, the server or the time, and not of what the kernel did.
ABOUT_THE_MACHINE = (errors.DatabaseProblem, errors.Unreachable, errors.WaitTimedOut)


class Report(StrEnum):
    """What a failure says about a mutant."""

    CAUGHT = "caught"
    BROKEN = "it does not run"
    INCONCLUSIVE = "inconclusive"


def report_of(error: BaseException) -> Report:
    """What an error that ended a test says about the mutant."""
    if _reports_a_wrong_result(error):
        return Report.CAUGHT
    if (getattr(error, "sqlstate", None) or "")[:2] in BROKEN_SQL or isinstance(error, BROKEN_CODE):
        return Report.BROKEN
    return Report.INCONCLUSIVE


def report_of_surprise(name: str) -> Report:
    """What an error that came out of the kernel in a schedule says about the mutant; `name`: of its class."""
    kind = next((found for module in (psycopg.errors, errors) if (found := getattr(module, name, None))), None)
    if kind is None:
        return Report.CAUGHT if name == AssertionError.__name__ else Report.INCONCLUSIVE
    if issubclass(kind, errors.HoldfastError):
        return Report.INCONCLUSIVE if issubclass(kind, ABOUT_THE_MACHINE) else Report.CAUGHT
    return Report.CAUGHT if kind is psycopg.errors.DeadlockDetected else report_of(kind())


def _reports_a_wrong_result(error: BaseException) -> bool:
    if isinstance(error, psycopg.Error):
        return isinstance(error, psycopg.errors.LockNotAvailable) or (error.sqlstate or "")[:2] == CONSTRAINT
    if isinstance(error, pytest.fail.Exception):
        return not str(error).startswith(TIMEOUT)
    return isinstance(error, AssertionError) or _is_a_missing_row(error)


def _is_a_missing_row(error: BaseException) -> bool:
    """Whether a test has unpacked it: in the code of the product it is a defect of the mutant."""
    if not (isinstance(error, ValueError | TypeError) and MISSING_ROW.search(str(error)) and error.__traceback__):
        return False
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    return Path(last.tb_frame.f_code.co_filename).is_relative_to(TESTS)


def why_it_does_not_run(mutant: Mutant, url: str) -> str | None:
    """The statement of the mutated kernel that Postgres cannot plan on the mutated schema, or None. Nothing is kept."""
    return _in_a_child(lambda: _first_broken(mutant, url))


def _first_broken(mutant: Mutant, url: str) -> str | None:
    before = can_be_prepared(statements())
    mutant.apply()
    after = can_be_prepared(statements())
    schema = [change.sql for change in mutant.changes if isinstance(change, Schema)]
    changed = {name: text for name, text in after.items() if schema or text != before.get(name)}
    with psycopg.connect(url) as conn:
        for sql in schema:
            conn.execute(sql)  # type: ignore[arg-type]
        refused = not_planned(conn, changed)
        conn.rollback()
    return next((f"{name}: {error}" for name, error in refused.items()), None)


def _in_a_child(work: Callable[[], Any]) -> Any:
    """A mutation cannot be taken back, so it happens in a fork."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = work()
        except BaseException as error:  # the parent gets it as text: that a mutant does not apply is an answer too
            answer = f"{type(error).__name__}: {error}"
        os.write(write, pickle.dumps(answer))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    return answer
