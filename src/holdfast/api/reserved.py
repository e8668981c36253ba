"""Reserved kinds: those of the control plane, and those of a service that are not declared `public=True`.

Only the routes of their service enqueue them: their handlers trust the payload, because the route has checked it. The kinds of
a service begin with its name; a kind that a service does not list as public is reserved, also one that it does not have.
What workers have published does not matter here: a worker must not be able to open a kind of a service.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from holdfast.api.problems import Problem
from holdfast.api.reserved_kinds import EFFECTS, KINDS, PREFIXES
from holdfast.jobs.declare import Declaration
from holdfast.jobs.effects import Effect
from holdfast.jobs.model import Claim

ONLY_ITS_CODE: Final = "only its own code records it"


def refuse_reserved(kind: str) -> None:
    """Raise a problem if only the routes of its service may enqueue this kind."""
    prefix, dot, _ = kind.partition(".")
    if dot and prefix in PREFIXES and not KINDS.get(kind, False):
        raise Problem("reserved-kind", f"{kind} is a kind of {PREFIXES[prefix]}, which does not declare it public")


def refuse_effect(claim: Claim, kind: str, tag: str | None, detail: Mapping[str, Any]) -> None:
    """Raise a problem if a remote worker may not record this effect for its attempt: a service's cleaner would trust it."""
    if kind not in EFFECTS:
        return
    service, target = EFFECTS.owner_of(kind), EFFECTS[kind]
    why: str | None = ONLY_ITS_CODE
    if target and claim.kind.startswith(f"{service}."):
        module, _, name = target.partition(":")
        why = getattr(import_module(module), name)(claim, kind, tag, detail)
    if why is not None:
        raise Problem("reserved-kind", f"{kind} is an effect of {PREFIXES[service]}: {why}")


def refuse_handle(effect: Effect) -> None:
    """Raise a problem if a remote worker may not give this effect a handle: a cleaner would clean what the handle names."""
    if EFFECTS.get(effect.kind) == "":
        raise Problem(
            "reserved-kind", f"{effect.kind} is an effect of {PREFIXES[EFFECTS.owner_of(effect.kind)]}: {ONLY_ITS_CODE}"
        )


def refuse_private(declared: Declaration) -> None:
    """Raise a problem if the kind declares that only Python code may enqueue it."""
    if not declared.public:
        raise Problem("reserved-kind", f"{declared.kind} is declared with public=False: only Python code may enqueue it")


def known_to_services(kind: str) -> Declaration | None:
    """The declaration of a service's public kind, which may be enqueued before any worker has published it."""
    return Declaration(kind) if KINDS.get(kind, False) else None
