"""Check that a mutant runs, and which failures count as catching it. Called by: `run.py`, its plugin, tests.

A mutant whose SQL cannot be planned makes every test fail and proves nothing. A mutant is caught if an assertion, an
invariant of the checker or a constraint of the database reports a wrong result, not if its own code is broken. A row
that is missing when a test unpacks it, or a lock timeout of a statement that must not wait, is such a report.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import psycopg
from proof.mutants.mutations import Mutant, Schema
from proof.mutants.statements import can_be_prepared, not_planned, statements

# SQLSTATE classes that tell of broken SQL: feature not supported, invalid statement name, syntax error or undefined object.
BROKEN_SQL = ("0A", "26", "42")
BROKEN_CODE = (TypeError, AttributeError, NameError, ImportError, SyntaxError, KeyError, IndexError, UnboundLocalError)


def is_broken(error: BaseException) -> bool:
    """Whether this error tells of a mutant that does not run, and not of one that does the wrong thing."""
    if isinstance(error, psycopg.Error):
        return (error.sqlstate or "")[:2] in BROKEN_SQL
    return isinstance(error, BROKEN_CODE)


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
