"""Check the description of a service, and add its entries to the kernel's tables. Called by: each `service.py`.

What can be checked without importing a module of the service is checked here. The rest is checked when the module is loaded:
routes, loops and settings in `catalog.py`, kinds by `declared_kinds`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.api.policy import POLICY
from holdfast.api.problem_types import PROBLEMS
from holdfast.api.reserved_kinds import EFFECTS, KINDS, PREFIXES
from holdfast.crashpoints import POINTS
from holdfast.database import locations
from holdfast.errors import ServiceInvalid
from holdfast.jobs.config_keys import KEYS
from holdfast.registry import Registry
from holdfast.services.contract import Command, Namespace, Page, Service, Topic
from holdfast.setting_parts import PARTS
from holdfast.telemetry.names import EVENTS, METRICS, PLANE_METRICS

J = TypeVar("J", bound=Any)
NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
KERNEL_LOOPS: Final = ("rescue", "promote", "wake", "effects", "pipeline_status", "prune")
KERNEL_COMMANDS: Final = (
    *(
        "status",
        "doctor",
        "job",
        "failure",
        "pipeline",
        "lock",
        "kind",
        "periodic",
        "audit",
        "drain",
        "undrain",
        "pause",
        "resume",
    ),
    *("up", "serve", "worker", "scheduler", "db", "auth", "completion", "config"),
)
KERNEL_PLURALS: Final = ("jobs", "failures", "pipelines", "locks", "workers", "kinds")
KERNEL_NAMESPACES: Final = ("jobs", "pipelines", "kinds", "api", "close")
PANELS: Final = ("inspect", "operate", "run")

# Tables that only services fill. The kernel's own commands and namespaces are in `holdfast.cli` and `holdfast.client`, which
# import the services; their names are listed above so that no service takes one.
SERVICES: Final = Registry[Service]("name", {})
LOOPS: Final = Registry[str]("loops", dict.fromkeys(KERNEL_LOOPS, ""))
TOPICS: Final = Registry[Topic | None]("topics", {"job": None, "pipeline": None, "console": None})
PAGES: Final = Registry[Page]("pages", {})
COMMANDS: Final = Registry[Command | None]("commands", dict.fromkeys((*KERNEL_COMMANDS, *KERNEL_PLURALS)))
CLIENT: Final = Registry[Namespace | None]("client", dict.fromkeys(KERNEL_NAMESPACES))
TABLES: Final = Registry[str]("tables", {})

REGISTRIES: Final[tuple[Registry[Any], ...]] = (
    *(SERVICES, PREFIXES, PARTS, POLICY, PROBLEMS, KEYS, KINDS, EFFECTS, LOOPS, EVENTS, METRICS, PLANE_METRICS, POINTS),
    *(TOPICS, PAGES, COMMANDS, CLIENT, TABLES),
)


def register(service: Service) -> Service:
    """Check it and add its entries, all or none."""
    for part, problem, fix in _problems(service):
        raise ServiceInvalid(service.name, part, problem, fix)
    SERVICES.add(service.name, {service.name: service})
    try:
        PREFIXES.add(service.name, {service.name: f"the service {service.name}"})
        if service.settings:
            PARTS.add(service.name, {service.name: f"{service.place}.{service.settings}"})
        POLICY.add(service.name, service.actions)
        PROBLEMS.add(service.name, service.problems)
        KEYS.add(service.name, service.config_keys)
        KINDS.add(service.name, {kind.name: kind.public for kind in service.kinds})
        EFFECTS.add(service.name, {kind: f"{service.place}.{of}" if of else "" for kind, of in service.effects.items()})
        LOOPS.add(service.name, _once(service, "loops", service.loops))
        EVENTS.add(service.name, service.events)
        METRICS.add(service.name, service.metrics)
        PLANE_METRICS.add(service.name, service.plane_metrics)
        POINTS.add(service.name, service.crash_points)
        TOPICS.add(service.name, {topic.name: topic for topic in service.topics})
        PAGES.add(service.name, {page.path: page for page in service.pages})
        COMMANDS.add(service.name, {name: one for one in service.commands for name in (one.name, one.plural) if name})
        CLIENT.add(service.name, {namespace.name: namespace for namespace in service.client})
        TABLES.add(service.name, _once(service, "tables", service.tables))
        _check_pages(service)
    except ServiceInvalid:
        unregister(service)
        raise
    if service.migrations:
        locations.add(service.migrations_folder)
    return service


def unregister(service: Service) -> None:
    """Remove its entries. Tests use it to undo `register`."""
    for registry in REGISTRIES:
        registry.remove(service.name)
    if service.migrations:
        locations.remove(service.migrations_folder)


def declared_kinds(service: Service, jobs: Sequence[J]) -> list[J]:
    """The jobs of a service's `kinds_module`, if they are exactly the kinds that it declares."""
    found, declared = {job.kind for job in jobs}, {kind.name for kind in service.kinds}
    for kind in sorted(found - declared):
        raise ServiceInvalid(service.name, "kinds", f"{kind!r} has a handler and is not declared", f"add Kind({kind!r})")
    for kind in sorted(declared - found):
        raise ServiceInvalid(
            service.name, "kinds", f"{kind!r} is declared and has no handler", f"add it to KINDS in {service.kinds_module}"
        )
    public = {kind.name: kind.public for kind in service.kinds}
    for job in jobs:
        if job.policy.public != public[job.kind]:
            problem = f"{job.kind!r} is declared with public={public[job.kind]} and its handler with public={job.policy.public}"
            raise ServiceInvalid(service.name, "kinds", problem, "use the same value in Kind and @job")
    return list(jobs)


def _problems(service: Service) -> Iterator[tuple[str, str, str]]:
    """What is wrong with a description by itself: part, problem, fix. Pure but for the look at its folder."""
    if not NAME.fullmatch(service.name):
        yield "name", "is not a lower-case identifier", "use letters, digits and underscores"
    if not service.purpose:
        yield "purpose", "is missing", "say in one sentence what the service does"
    for kind in service.kinds:
        if not kind.name.startswith(f"{service.name}."):
            yield "kinds", f"{kind.name!r} is outside the service's prefix", f"begin its name with '{service.name}.'"
    pairs = (
        ("kinds", service.kinds, "kinds_module", service.kinds_module),
        ("loops", service.loops, "loops_module", service.loops_module),
        ("tables", service.tables, "migrations", service.migrations),
    )
    for one, has_one, other, has_other in pairs:
        if bool(has_one) != bool(has_other):
            missing, given = (other, one) if has_one else (one, other)
            yield missing, f"is missing although {given} is given", f"declare {missing}, or remove {given}"
    if (service.actions or service.pages or service.topics or service.problems) and not service.routes:
        yield "routes", "is missing although actions, pages, topics or problems are given", "name the module that has ROUTES"
    for command in service.commands:
        if command.panel not in PANELS:
            yield "commands", f"{command.name!r} has the unknown panel {command.panel!r}", f"use one of: {', '.join(PANELS)}"
    yield from _missing_modules(service)


def _missing_modules(service: Service) -> Iterator[tuple[str, str, str]]:
    package = sys.modules.get(service.place)
    if package is None or not package.__file__:
        yield "package", f"{service.place} is not imported", "set `package` to the package that has service.py"
        return
    folder = Path(package.__file__).parent
    for part, target in _targets(service):
        module, colon, name = target.partition(":")
        file = folder.joinpath(*module.split("."))
        if not (file.with_suffix(".py").is_file() or (file / "__init__.py").is_file()):
            yield part, f"there is no module {service.place}.{module}", f"create {module.replace('.', '/')}.py, or fix the name"
        elif part in TARGETS and not (colon and name.isidentifier()):
            yield part, f"{target!r} is not a target", "write it as module:name"
    if service.migrations and not any((folder / service.migrations).glob("[0-9]*.py")):
        yield "migrations", f"there are no revisions in {service.migrations}/", "add one, or remove `migrations`"


# Parts that need `module:name`.
TARGETS: Final = frozenset({"settings", "client", "topics", "pages", "console_actions", "effects"})


def _targets(service: Service) -> list[tuple[str, str]]:
    """Every module and target of a description, with its part."""
    named = ("routes", "kinds_module", "loops_module", "settings", "checks", "console_actions")
    single = {part: getattr(service, part) for part in named}
    return [
        *((part, target) for part, target in single.items() if target),
        *(("commands", command.target) for command in service.commands),
        *(("client", namespace.target) for namespace in service.client),
        *(("effects", target) for target in service.effects.values() if target),
        *(("topics", topic.target) for topic in service.topics),
        *(("pages", target) for page in service.pages for target in (page.target, page.takes) if target),
        *((("demo", service.demo),) if service.demo else ()),
    ]


def _check_pages(service: Service) -> None:
    for page in service.pages:
        if page.action not in POLICY:
            raise ServiceInvalid(
                service.name,
                "pages",
                f"{page.path!r} uses the action {page.action!r}, which has no rule",
                "add it to `actions`",
            )


def _once(service: Service, part: str, names: Sequence[str]) -> dict[str, str]:
    for name in names:
        if names.count(name) > 1:
            raise ServiceInvalid(service.name, part, f"{name!r} is declared twice", "remove one of them")
    return dict.fromkeys(names, service.name)
