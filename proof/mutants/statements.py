"""Every SQL statement of the kernel, and which of them Postgres refuses to plan. Called by: `run.py`, tests.

A statement is a constant in capitals in `holdfast.jobs` that starts with an SQL verb.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import psycopg

import holdfast.jobs

MODULES = [import_module(found.name) for found in pkgutil.walk_packages(holdfast.jobs.__path__, "holdfast.jobs.")]
VERB = re.compile(r"^\s*(SELECT|INSERT|UPDATE|DELETE|WITH|COPY)\b")
PARAMETER = re.compile(r"%\((\w+)\)s")
# COPY cannot be prepared; the others are parts of larger statements. Their own tests run them.
NOT_PREPARED = ("copying.COPY_JOBS", "copying.COPY_WANTS", "rescue.NOTE_CRASHED", "pipeline_status.READ_STATES")
# A timedelta arrives with a type of its own; every other parameter is text, and Postgres infers what it needs.
INTERVALS = {"older_than", "grace", "lease", "delay", "max_runtime", "kept"}


def statements() -> dict[str, str]:
    """The statements as they are now, by module and name."""
    found = {}
    for module in MODULES:
        for name, constant in vars(module).items():
            if name.isupper() and isinstance(constant, str) and VERB.match(constant):
                found[f"{module.__name__.rsplit('.', 1)[1]}.{name}"] = constant
    return found


def can_be_prepared(statements: Mapping[str, str]) -> dict[str, str]:
    """Those that are whole: no COPY, no part of another one, no `{filters}` to fill in."""
    return {name: text for name, text in statements.items() if name not in NOT_PREPARED and not re.search(r"\{\w+\}", text)}


def parameters_of(statement: str) -> list[str]:
    """The names of its parameters, in the order of `$1`, `$2`, …"""
    return list(dict.fromkeys(PARAMETER.findall(statement)))


def prepare(name: str, statement: str) -> str:
    """`PREPARE name AS …`, with psycopg's `%(name)s` as `$n`."""
    names = parameters_of(statement)
    text = PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", statement).replace("%%", "%")
    types = ", ".join("interval" if parameter in INTERVALS else "unknown" for parameter in names)
    return f"PREPARE {name} {f'({types})' if types else ''} AS {text}"


def not_planned(conn: psycopg.Connection[Any], statements: Mapping[str, str]) -> dict[str, str]:
    """The statements that Postgres cannot plan, and why. Nothing is executed.

    PREPARE alone is not enough: a missing unique index behind ON CONFLICT is only noticed by the planner.
    """
    refused = {}
    for name, statement in statements.items():
        values = ", ".join(["NULL"] * len(parameters_of(statement)))
        try:
            with conn.transaction():
                conn.execute(prepare("tried", statement))  # type: ignore[arg-type]
                conn.execute(f"EXPLAIN EXECUTE tried {f'({values})' if values else ''}")  # type: ignore[arg-type]
                conn.execute("DEALLOCATE tried")
        except psycopg.Error as error:
            refused[name] = f"{type(error).__name__}: {error}".split("\n")[0]
    return refused
