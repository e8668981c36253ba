"""What a service declares: one frozen `Service`. `catalog.py` lists them; every program reads its parts from there.

A part is data, or the name of a module that is imported when it is needed: a worker never loads routes, the API never loads
engines, and `holdfast --help` loads neither. Module names are relative to the service's package: `cli.mapping` is
`holdfast.services.exports.cli.mapping`. A target is `module:name`.

`register` checks a description and adds its entries to the kernel's tables. A service calls it in its `service.py`, which its
package imports: its entries are there as soon as any of its modules is loaded. docs/howto/add-a-service.md shows each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.api.policy import Rule
from holdfast.api.problem_types import ProblemType
from holdfast.jobs.config_keys import ConfigKey


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job. Its name begins with the service's name and a dot. Users may enqueue only public kinds."""

    name: str
    public: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line: `holdfast <name> …`.

    `target` is a module with a Typer `app` or a function `command`, or `module:name` of either. `panel` is the section of
    `holdfast --help`: "inspect", "operate" or "run". `plural` is accepted in place of the name.
    """

    name: str
    target: str
    purpose: str
    panel: str = "inspect"
    plural: str = ""


@dataclass(frozen=True, slots=True)
class Namespace:
    """An attribute of the HTTP client's connection: `hf.<name>`. `target` is a class that is called with the `Api`."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of event streams: `<name>:<key>`. `target` is an async function `read(conn, keys)` that returns the events of
    each key as they are now, as a mapping from key to a list of `holdfast.api.sse.Event`; a key that it leaves out is gone."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the web console at `/console/<path>`. Only roles that `action` allows see it.

    `target` is an async function `render(view)` that returns a `holdfast.console.view.Shown`: a template and its values. The
    template is in the folder `templates` beside the module of the target. `section` is the heading in the navigation; a page
    without one is reached by links only. docs/howto/add-a-console-page.md shows a page with an action. `takes` is for a form
    that an action cannot have, such as an upload: an async function `take(request)` that answers the POST of the page's path.
    """

    path: str
    title: str
    action: str
    target: str
    section: str = ""
    takes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One thing that the system can do, and everything that belongs to it."""

    name: str
    purpose: str
    package: str = ""  # default: holdfast.services.<name>

    # HTTP
    routes: str = ""  # module with ROUTES (a sequence of `Routes`) and `open_for(settings)`, see `api.plane.Resources`
    actions: Mapping[str, Rule] = field(default_factory=dict)  # each action of its routes, and which roles may do it
    problems: Mapping[str, ProblemType] = field(default_factory=dict)  # by slug
    topics: tuple[Topic, ...] = ()
    pages: tuple[Page, ...] = ()
    console_actions: str = ""  # target: a sequence of `holdfast.console.actions.Action`, the buttons of its pages

    # Jobs and loops
    kinds: tuple[Kind, ...] = ()
    kinds_module: str = ""  # has KINDS; importing it registers the handlers and the cleaners
    # The kinds of effects that its cleaners clean. A cleaner has the credentials of its process and trusts what was recorded:
    # a remote worker may record only those with a target: `reason_against(claim, kind, tag, detail)`, None if it may.
    effects: Mapping[str, str] = field(default_factory=dict)
    loops: tuple[str, ...] = ()  # names
    loops_module: str = ""  # has `loops(settings)`, which returns the loops

    # Settings and values that may change at run time
    settings: str = ""  # target: a subclass of `holdfast.settings.Settings` with the service's fields
    config_keys: Mapping[str, ConfigKey] = field(default_factory=dict)

    # Telemetry and tests
    events: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)  # of a process
    plane_metrics: Mapping[str, str] = field(default_factory=dict)  # read from the database by the API
    crash_points: Mapping[str, str] = field(default_factory=dict)

    # Command line and client
    commands: tuple[Command, ...] = ()
    client: tuple[Namespace, ...] = ()
    checks: str = ""  # module with `checks(settings)`, which yields the findings of `holdfast doctor`
    demo: str = ""  # module with `async play(url, console, settings) -> bool`: its part of `holdfast up`; True: it worked

    # Database and installation
    tables: tuple[str, ...] = ()  # that it creates: in the schema `holdfast`, or given as schema.table
    migrations: str = ""  # folder within the package with its Alembic revisions
    extras: Mapping[str, str] = field(default_factory=dict)  # extra of the distribution: a module that is there if installed

    @property
    def place(self) -> str:
        """The name of its package."""
        return self.package or f"holdfast.services.{self.name}"

    def module(self, part: str) -> Any:
        """One of its modules, imported now."""
        return import_module(f"{self.place}.{part}")

    def load(self, target: str) -> Any:
        """What `module:name` names, imported now."""
        part, _, name = target.partition(":")
        return getattr(self.module(part), name)

    @property
    def migrations_folder(self) -> Path | None:
        """Where its Alembic revisions are; None: it has none."""
        if not self.migrations:
            return None
        file = import_module(self.place).__file__
        assert file is not None
        return Path(file).parent / self.migrations
