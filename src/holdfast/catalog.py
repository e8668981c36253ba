"""SERVICES: everything that the system can do, as one list. Programs, command line and client read the services' parts here.

Importing a service imports its description, not its modules: a worker never loads routes, the API never loads engines. What a
description says of a module is checked when the module is loaded; `services/registration.py` checks the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from holdfast.api.policy import POLICY
from holdfast.api.problem_types import PROBLEMS
from holdfast.errors import ServiceInvalid
from holdfast.services.contract import Command, Namespace, Service
from holdfast.services.exports import SERVICE as EXPORTS
from holdfast.services.graphs import SERVICE as GRAPHS
from holdfast.services.ingestion import SERVICE as INGESTION
from holdfast.services.maintenance import SERVICE as MAINTENANCE

if TYPE_CHECKING:
    from holdfast.api.plane import LazyResources, Resources
    from holdfast.api.routes import Routes
    from holdfast.console.app import Parts
    from holdfast.schedule.registry import Loop
    from holdfast.settings import Settings

SERVICES: tuple[Service, ...] = (EXPORTS, GRAPHS, MAINTENANCE, INGESTION)


# ---------------------------------------------------------------------------------------------------------------------
# The API
# ---------------------------------------------------------------------------------------------------------------------


def nouns() -> list[Routes]:
    """The routes of every service."""
    return [noun for load in lazy_nouns() for noun in load()]


def lazy_nouns() -> list[Callable[[], Sequence[Routes]]]:
    """The routes of each service, to be loaded when they are needed."""
    return [partial(_routes_of, service) for service in SERVICES if service.routes]


def console_parts() -> Parts:
    """The pages, the actions and the templates that services add to the console."""
    console = import_module("holdfast.console.app")
    pages = [
        import_module("holdfast.console.pages").ServedPage(
            page.path,
            page.title,
            page.action,
            service.load(page.target),
            page.section,
            service.name,
            service.load(page.takes) if page.takes else None,
        )
        for service, page in _all("pages")
    ]
    actions = [one for service in SERVICES if service.console_actions for one in service.load(service.console_actions)]
    for action in actions:
        if action.policy not in POLICY:
            problem = f"{action.name!r} uses the action {action.policy!r}, which has no rule"
            raise ServiceInvalid("console", "console_actions", problem, "add it to `actions`")
    folders = {service.name: _templates_of(service) for service in SERVICES if service.pages}
    return cast("Parts", console.Parts(pages, actions, folders))


def _templates_of(service: Service) -> Path:
    """The folder `templates` beside the module of its pages."""
    module = service.module(service.pages[0].target.partition(":")[0])
    return Path(str(module.__file__)).parent / "templates"


def _routes_of(service: Service) -> Sequence[Routes]:
    module = service.module(service.routes)
    for name in ("ROUTES", "open_for"):
        if not hasattr(module, name):
            raise ServiceInvalid(service.name, "routes", f"{module.__name__} has no {name}", f"define {name} there")
    found = cast("Sequence[Routes]", module.ROUTES)
    used = set()
    for route in (route for noun in found for route in noun.declared):
        used.add(route.action)
        where = f"{route.method} {route.path}"
        if route.action not in POLICY:
            raise ServiceInvalid(
                service.name, "actions", f"{where} uses the action {route.action!r}, which has no rule", "add it to `actions`"
            )
        for slug in route.refuses:
            if slug not in PROBLEMS:
                raise ServiceInvalid(
                    service.name, "problems", f"{where} refuses with {slug!r}, which has no type", "add it to `problems`"
                )
    used |= {page.action for page in service.pages}
    for action in service.actions:
        if action not in used:
            raise ServiceInvalid(service.name, "actions", f"no route uses {action!r}", "remove it, or add its route")
    return found


def resources(settings: Settings) -> dict[str, Resources]:
    """What the routes of each service keep open while the API runs, by the service's name."""
    return {name: opener() for name, opener in _openers(lambda: settings).items()}


def lazy_resources(settings: Callable[[], Settings]) -> LazyResources:
    """The same, each opened when it is first used; the settings are then read as well."""
    return cast("LazyResources", import_module("holdfast.api.plane").LazyResources(_openers(settings)))


def _openers(settings: Callable[[], Settings]) -> dict[str, Callable[[], Resources]]:
    return {one.name: partial(_open, one, settings) for one in SERVICES if one.routes}


def _open(service: Service, settings: Callable[[], Settings]) -> Resources:
    return cast("Resources", service.module(service.routes).open_for(settings()))


def topics() -> dict[str, Any]:
    """The reader of each topic of event streams."""
    return {topic.name: service.load(topic.target) for service, topic in _all("topics")}


# ---------------------------------------------------------------------------------------------------------------------
# Workers and schedulers
# ---------------------------------------------------------------------------------------------------------------------


def kind_modules(names: Sequence[str] | None = None) -> list[str]:
    """The modules that register the kinds of these services; of all, if none are named."""
    found = [service for service in SERVICES if service.kinds and (names is None or service.name in names)]
    return [f"{service.place}.{service.kinds_module}" for service in found]


def loops(settings: Settings) -> list[Loop]:
    """The periodic loops of every service."""
    return [loop for service in SERVICES if service.loops for loop in _loops_of(service, settings)]


def _loops_of(service: Service, settings: Settings) -> list[Loop]:
    found = cast("list[Loop]", service.module(service.loops_module).loops(settings))
    names, declared = {loop.name for loop in found}, set(service.loops)
    for name in sorted(names - declared):
        raise ServiceInvalid(service.name, "loops", f"{name!r} is not declared", "add its name to `loops`")
    for name in sorted(declared - names):
        raise ServiceInvalid(
            service.name, "loops", f"{name!r} is declared and does not exist", f"return it from {service.loops_module}.loops"
        )
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Command line and client
# ---------------------------------------------------------------------------------------------------------------------


def commands() -> list[tuple[Service, Command]]:
    """The commands of every service, with the service that loads their targets."""
    return _all("commands")


def namespaces() -> list[tuple[Service, Namespace]]:
    """The client namespaces of every service, with the service that loads their targets."""
    return _all("client")


def checks() -> list[Any]:
    """The function of each service that yields findings for `holdfast doctor`, from the settings."""
    return [service.module(service.checks).checks for service in SERVICES if service.checks]


def extras() -> dict[str, str]:
    """The extras of the distribution that services need: a module that is there if the extra is installed."""
    return {extra: module for service in SERVICES for extra, module in service.extras.items()}


def tables() -> list[str]:
    """The tables of every service."""
    return [table for service in SERVICES for table in service.tables]


def _all(part: str) -> list[tuple[Service, Any]]:
    return [(service, one) for service in SERVICES for one in getattr(service, part)]
