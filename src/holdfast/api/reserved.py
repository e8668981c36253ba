"""Kinds that nobody enqueues by hand: the control plane's own, and those of the services, which have doors of their own.

Their payloads are written by those doors and trusted by their handlers: whoever could write one would do what its door
refuses them. The kinds of a service begin with its name.
"""

from __future__ import annotations

from typing import Final

from holdfast.api.plane import Plane
from holdfast.api.problems import Problem
from holdfast.jobs.declare import Declaration

OWN: Final = "holdfast"


def refuse_reserved(plane: Plane, kind: str) -> None:
    """Raise a problem if this kind is made by other routes only."""
    family, dot, _ = kind.partition(".")
    if dot and (family == OWN or family in plane.services):
        whose = "the control plane itself" if family == OWN else f"the service {family}"
        raise Problem("reserved-kind", f"{kind} is a kind of {whose}")


def refuse_private(declared: Declaration) -> None:
    """Raise a problem if the kind declares that only Python code may enqueue it."""
    if not declared.public:
        raise Problem("reserved-kind", f"{declared.kind} is declared with public=False: only Python code may enqueue it")


def known_to_services(plane: Plane, kind: str) -> Declaration | None:
    """What a service says of a kind of its own that may be enqueued before any of its workers has run."""
    return next((Declaration(kind) for service in plane.services.values() if kind in service.open_kinds), None)
