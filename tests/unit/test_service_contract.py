"""An incomplete or contradictory description of a service is refused at start. The message names service, part and fix."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import catalog
from holdfast.api.policy import POLICY, READERS, Rule
from holdfast.api.problem_types import PROBLEMS, ProblemType
from holdfast.errors import ServiceInvalid
from holdfast.jobs.config_keys import ConfigKey
from holdfast.schedule.kernel import INTERVALS
from holdfast.services.contract import Command, Kind, Namespace, Page, Service, Topic
from holdfast.services.registration import (
    KERNEL_COMMANDS,
    KERNEL_LOOPS,
    KERNEL_NAMESPACES,
    KERNEL_PLURALS,
    REGISTRIES,
    declared_kinds,
    register,
    unregister,
)
from holdfast.settings import Settings, settings_class

RULE = Rule("read toys", READERS)
ROUTES = """
from holdfast.api.routes import Routes
routes = Routes("toys")
ROUTES = (routes,)
def open_for(settings): ...
@routes.add("GET", "/api/toys", action="{action}", refuses={refuses})
async def list_toys(): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package `toys`, with an empty module for each part."""
    made = tmp_path / "toys"
    (made / "migrations").mkdir(parents=True)
    for name in ("__init__", "api", "kinds", "loops", "settings", "cli", "client", "topics", "pages", "checks"):
        (made / f"{name}.py").write_text("")
    (made / "migrations" / "9001_toys.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("toys")
    yield made
    for name in [name for name in sys.modules if name.split(".")[0] == "toys"]:
        del sys.modules[name]


@pytest.fixture
def tables() -> Iterator[None]:
    """Puts the tables back as they were, and sees that a refused service leaves nothing in them."""
    before = [dict(registry) for registry in REGISTRIES]
    yield
    unregister(TOYS)
    assert [dict(registry) for registry in REGISTRIES] == before


TOYS = Service(
    name="toys",
    package="toys",
    purpose="Lends toys.",
    routes="api",
    actions={"toys.read": RULE},
    problems={"toy-broken": ProblemType(409, "Broken", "Repair it.")},
    topics=(Topic("toy", "topics:read"),),
    pages=(Page("toys", "Toys", "toys.read", "pages:show"),),
    kinds=(Kind("toys.lend"),),
    kinds_module="kinds",
    loops=("toys_count",),
    loops_module="loops",
    settings="settings:ToySettings",
    config_keys={"toys.most": ConfigKey(1, 1, 2, "Most toys.")},
    events={"toy_lent": "A toy was lent."},
    metrics={"toys_lent_total": "Toys that were lent."},
    plane_metrics={"toys": "Toys."},
    crash_points={"toys.before": "Before."},
    commands=(Command("toy", "cli", "Toys."),),
    client=(Namespace("toys", "client:Toys"),),
    checks="checks",
    tables=("toys",),
    migrations="migrations",
)


@pytest.mark.usefixtures("folder", "tables")
def test_a_complete_description_is_accepted_and_fills_the_tables() -> None:
    register(TOYS)

    assert POLICY["toys.read"] is RULE
    assert PROBLEMS.owner_of("toy-broken") == "toys"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "Toys!"}, "service 'Toys!', name: is not a lower-case identifier; use letters"),
        ({"purpose": ""}, "service 'toys', purpose: is missing; say in one sentence"),
        ({"package": "no_toys"}, "package: no_toys is not imported; set `package`"),
        ({"routes": "http"}, "routes: there is no module toys.http; create http.py, or fix the name"),
        ({"routes": ""}, "routes: is missing although actions, pages, topics or problems are given; name the module"),
        ({"kinds": (Kind("games.lend"),)}, "kinds: 'games.lend' is outside the service's prefix; begin its name with 'toys.'"),
        ({"kinds_module": ""}, "kinds_module: is missing although kinds is given; declare kinds_module, or remove kinds"),
        ({"kinds": ()}, "kinds: is missing although kinds_module is given"),
        ({"loops_module": ""}, "loops_module: is missing although loops is given"),
        ({"loops": ("rescue",)}, "loops: 'rescue' is already declared by the kernel; choose another name"),
        ({"loops": ("a", "a")}, "loops: 'a' is declared twice; remove one of them"),
        ({"migrations": ""}, "migrations: is missing although tables is given"),
        ({"migrations": "versions"}, "migrations: there are no revisions in versions/; add one"),
        ({"tables": ("snapshots",)}, "tables: 'snapshots' is already declared by service 'exports'; choose another name"),
        ({"actions": {"jobs.read": RULE}, "pages": ()}, "actions: 'jobs.read' is already declared by the kernel"),
        ({"actions": {"mappings.read": RULE}, "pages": ()}, "'mappings.read' is already declared by service 'exports'"),
        ({"actions": {}}, "pages: 'toys' uses the action 'toys.read', which has no rule; add it to `actions`"),
        ({"problems": {"not-found": ProblemType(404, "", "")}}, "problems: 'not-found' is already declared by the kernel"),
        ({"config_keys": {"cache.metadata.ttl_hours": ConfigKey(1, 1, 1, "")}}, "config_keys: 'cache.metadata.ttl_hours' is"),
        ({"events": {"job_completed": ""}}, "events: 'job_completed' is already declared by the kernel"),
        ({"metrics": {"holdfast_attempts_total": ""}}, "metrics: 'holdfast_attempts_total' is already declared"),
        ({"plane_metrics": {"holdfast_jobs": ""}}, "plane_metrics: 'holdfast_jobs' is already declared"),
        ({"crash_points": {"run.mid": ""}}, "crash_points: 'run.mid' is already declared by the kernel"),
        ({"topics": (Topic("job", "topics:read"),)}, "topics: 'job' is already declared by the kernel"),
        ({"topics": (Topic("toy", "topics"),)}, "topics: 'topics' is not a target; write it as module:name"),
        ({"commands": (Command("export", "cli", ""),)}, "commands: 'export' is already declared by service 'exports'"),
        ({"commands": (Command("job", "cli", ""),)}, "commands: 'job' is already declared by the kernel; choose another name"),
        ({"commands": (Command("toy", "cli", "", plural="jobs"),)}, "commands: 'jobs' is already declared by the kernel"),
        ({"client": (Namespace("jobs", "client:Toys"),)}, "client: 'jobs' is already declared by the kernel"),
        ({"commands": (Command("toy", "cli", "", panel="x"),)}, "commands: 'toy' has the unknown panel 'x'; use one of"),
        ({"commands": (Command("toy", "cli.toy", ""),)}, "commands: there is no module toys.cli.toy; create cli/toy.py"),
        ({"client": (Namespace("mappings", "client:Toys"),)}, "client: 'mappings' is already declared by service 'exports'"),
        ({"settings": "settings"}, "settings: 'settings' is not a target; write it as module:name"),
        ({"checks": "doctor"}, "checks: there is no module toys.doctor"),
        ({"demo": "demo"}, "demo: there is no module toys.demo"),
    ],
)
@pytest.mark.usefixtures("folder", "tables")
def test_invalid_description_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ServiceInvalid) as refused:
        register(replace(TOYS, **change))
    assert said in str(refused.value)


@pytest.mark.usefixtures("folder", "tables")
def test_names_are_unique_across_services() -> None:
    with pytest.raises(ServiceInvalid, match="service 'exports', name: 'exports' is already declared by service 'exports'"):
        register(replace(TOYS, name="exports", kinds=(Kind("exports.lend"),)))


@pytest.fixture
def listed(folder: Path, tables: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a module of the service, and adds the service to the catalog."""

    def write(module: str, text: str) -> None:
        (folder / f"{module}.py").write_text(text)
        register(TOYS)
        monkeypatch.setattr(catalog, "SERVICES", (TOYS,))

    return write


PAGE = "\nasync def show(request): ...\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ROUTES = ()", "routes: toys.api has no open_for; define open_for there"),
        (
            ROUTES.format(action="toys.steal", refuses=[]),
            "actions: GET /api/toys uses the action 'toys.steal', which has no rule; add it to `actions`",
        ),
        (
            ROUTES.format(action="toys.read", refuses=["toy-lost"]),
            "problems: GET /api/toys refuses with 'toy-lost', which has no type; add it to `problems`",
        ),
    ],
)
def test_routes_need_rules_and_problem_types(listed: Callable[[str, str], None], text: str, said: str) -> None:
    listed("api", text)
    with pytest.raises(ServiceInvalid) as refused:
        catalog.nouns()
    assert said in str(refused.value)


def test_an_action_without_a_route_is_refused(listed: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    listed("api", ROUTES.format(action="jobs.read", refuses=[]))
    monkeypatch.setattr(catalog, "SERVICES", (replace(TOYS, pages=()),))
    with pytest.raises(ServiceInvalid, match="actions: no route uses 'toys.read'; remove it, or add its route"):
        catalog.nouns()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["toys_count", "toys_wash"], "loops: 'toys_wash' is not declared; add its name to `loops`"),
        ([], "loops: 'toys_count' is declared and does not exist; return it from loops.loops"),
    ],
)
def test_undeclared_loops_are_refused(listed: Callable[[str, str], None], names: list[str], said: str) -> None:
    listed("loops", f"from types import SimpleNamespace as N\ndef loops(settings): return [N(name=n) for n in {names}]")
    with pytest.raises(ServiceInvalid) as refused:
        catalog.loops(Settings())
    assert said in str(refused.value)


def handler(kind: str, *, public: bool = False) -> Any:
    return SimpleNamespace(kind=kind, policy=SimpleNamespace(public=public))


def test_undeclared_kinds_are_refused() -> None:
    lend, steal = handler("toys.lend"), handler("toys.steal")
    assert declared_kinds(TOYS, [lend]) == [lend]
    with pytest.raises(
        ServiceInvalid, match=r"kinds: 'toys.steal' has a handler and is not declared; add Kind\('toys.steal'\)"
    ):
        declared_kinds(TOYS, [lend, steal])
    with pytest.raises(ServiceInvalid, match="kinds: 'toys.lend' is declared and has no handler; add it to KINDS in kinds"):
        declared_kinds(TOYS, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ToySettings = dict", "settings: toys.settings:ToySettings is not a subclass of Settings; derive it from Settings"),
        (
            "from holdfast.settings import Settings\nclass ToySettings(Settings):\n    snapshots_to: str = ''",
            "settings: the field 'snapshots_to' is already declared by holdfast.services.exports.settings.ExportsSettings",
        ),
        (
            "from holdfast.settings import Settings\nclass ToySettings(Settings):\n    beat_seconds: float = 1.0",
            "settings: the field 'beat_seconds' is already declared by holdfast.settings.Settings; rename it",
        ),
    ],
)
def test_settings_of_a_service_extend_those_of_the_kernel(listed: Callable[[str, str], None], text: str, said: str) -> None:
    listed("settings", text)
    with pytest.raises(ServiceInvalid) as refused:
        settings_class()
    assert said in str(refused.value)


@pytest.mark.parametrize("public", [True, False])
def test_service_and_handler_agree_on_public_kinds(public: bool) -> None:
    service = replace(TOYS, kinds=(Kind("toys.lend", public=public),))
    assert declared_kinds(service, [handler("toys.lend", public=public)])

    said = f"kinds: 'toys.lend' is declared with public={public} and its handler with public={not public}; use the same value"
    with pytest.raises(ServiceInvalid, match=said):
        declared_kinds(service, [handler("toys.lend", public=not public)])


def test_the_names_of_the_kernels_loops_are_known() -> None:
    assert set(KERNEL_LOOPS) == set(INTERVALS)


def test_the_names_of_the_kernels_commands_and_namespaces_are_known() -> None:
    from holdfast.cli import table
    from holdfast.client.connection import Connection

    assert set(KERNEL_COMMANDS) == set(table.KERNEL)
    assert set(KERNEL_PLURALS) == {f"{name}s" for name in table.PLURALS}
    connection = Connection(SimpleNamespace())  # type: ignore[arg-type]
    assert {name for name in {*vars(connection), *vars(Connection)} if not name.startswith("_")} == set(KERNEL_NAMESPACES)
