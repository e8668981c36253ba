"""SERVICES: everything that the system can do, as one list. The programs and the command line learn of a service here.

A service is named by its modules and not imported: a worker never loads the routes, the API never loads the engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from holdfast.api.routes import Routes
    from holdfast.schedule.registry import Loop
    from holdfast.settings import Settings

PLACE: Final = "holdfast.services"


@dataclass(frozen=True, slots=True)
class Service:
    """One thing that the system can do, and where its parts are, within its folder; "": it has none of these."""

    name: str
    says: str
    routes: str = ""  # has ROUTES, and `open_for(settings)`: what they need as long as the API runs
    kinds: str = ""  # importing it registers its kinds and cleaners
    loops: str = ""  # has `loops(settings)`

    def module(self, part: str) -> Any:
        """One of its modules, loaded now."""
        return import_module(f"{PLACE}.{self.name}.{part}")


SERVICES: Final = (Service("exports", "SQL to Parquet: mappings, snapshots, export jobs, engines", "api", "kinds", "loops"),)


def nouns() -> list[Routes]:
    """The routes of every service."""
    return [noun for service in SERVICES if service.routes for noun in service.module(service.routes).ROUTES]


def resources(settings: Settings) -> dict[str, Any]:
    """What the routes of each service need as long as they are served, by the service's name; each can be closed."""
    return {one.name: one.module(one.routes).open_for(settings) for one in SERVICES if one.routes}


def kind_modules(names: Sequence[str] | None = None) -> list[str]:
    """The modules that register the kinds of these services; of all, if none are named."""
    found = [service for service in SERVICES if service.kinds and (names is None or service.name in names)]
    return [f"{PLACE}.{service.name}.{service.kinds}" for service in found]


def loops(settings: Settings) -> list[Loop]:
    """The periodic loops of every service."""
    return [
        loop
        for service in SERVICES
        if service.loops
        for loop in cast("list[Loop]", service.module(service.loops).loops(settings))
    ]
