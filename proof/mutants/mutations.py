"""Apply a mutant to the kernel, in memory only. Called by: `run.py` and the pytest plugin.

A change replaces a part of a statement, a function, or the schema of a new database. Every change names what it expects
to find and raises `DoesNotApply` otherwise, so that no mutant silently changes nothing.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from holdfast.database import migrate


class DoesNotApply(Exception):
    """The code has changed and the mutant has not: bring it up to date."""


@dataclass(frozen=True, slots=True)
class Text:
    """Swap a piece of a statement. `where` is `module.CONSTANT` below `holdfast.jobs`, or `worker.module.NAME`."""

    where: str
    old: str
    new: str

    def apply(self) -> None:
        module, name = _find(self.where)
        before = getattr(module, name)
        if self.old not in before:
            raise DoesNotApply(f"{self.where} does not contain {self.old!r}")
        _everywhere(name, before, before.replace(self.old, self.new))


@dataclass(frozen=True, slots=True)
class Whole:
    """Swap a whole statement."""

    where: str
    new: str

    def apply(self) -> None:
        module, name = _find(self.where)
        _everywhere(name, getattr(module, name), self.new)


@dataclass(frozen=True, slots=True)
class Code:
    """Swap a function; `make` gets the original and returns the mutant."""

    where: str
    make: Callable[[Any], Any]

    def apply(self) -> None:
        module, name = _find(self.where)
        original = getattr(module, name)
        mutated = self.make(original)
        _require_same_arguments(original, mutated)
        _everywhere(name, original, mutated)


@dataclass(frozen=True, slots=True)
class Schema:
    """Change every database right after it was migrated."""

    sql: str

    def apply(self) -> None:
        original = migrate.migrate

        def mutated(url: str, revision: str = "head") -> Any:
            was_current = migrate.status(url).is_current
            status = original(url, revision)
            if revision == "head" and not was_current:  # once for each database, however often it is migrated
                with psycopg.connect(url, autocommit=True) as conn:
                    conn.execute(self.sql)
            return status

        _everywhere("migrate", original, mutated)


Change = Text | Whole | Code | Schema


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake that a hurried author might make, and the tests that should notice."""

    name: str
    mistake: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...] = ()

    def apply(self) -> None:
        for change in self.changes:
            change.apply()


def _find(where: str) -> tuple[Any, str]:
    path, _, name = where.rpartition(".")
    package = "holdfast" if path.startswith("worker.") else "holdfast.jobs"
    module = importlib.import_module(f"{package}.{path}")
    if not hasattr(module, name):
        raise DoesNotApply(f"{package}.{where} does not exist")
    return module, name


def _require_same_arguments(original: Any, mutated: Any) -> None:
    """Every argument of the original must be accepted, or the callers fail whatever the mutant does."""
    wanted = inspect.signature(original).parameters.values()
    by_position = [None for one in wanted if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    by_name = {one.name: None for one in wanted if one.kind is one.KEYWORD_ONLY}
    try:
        inspect.signature(mutated).bind(*by_position, **by_name)
    except TypeError as error:
        raise DoesNotApply(f"{original.__name__} has other arguments: {error}") from None


def _everywhere(name: str, old: Any, new: Any) -> None:
    """In every module that has it under its name, also where it was imported from elsewhere."""
    if old == new:
        raise DoesNotApply(f"{name} stays as it was")
    for module in [module for key, module in sys.modules.items() if key.split(".")[0] in ("holdfast", "proof")]:
        if module is not None and module.__dict__.get(name) is old:
            setattr(module, name, new)
