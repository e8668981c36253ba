"""The structure of the code: sizes, names, where SQL is allowed, and public names."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import holdfast
import holdfast.catalog
import holdfast.worker.loop  # everything that counts is loaded with it
from holdfast.schedule.kernel import INTERVALS, kernel_loops
from holdfast.settings import settings_class
from holdfast.telemetry.metrics import REGISTRY
from holdfast.telemetry.names import EVENTS, METRICS

SOURCE = Path(holdfast.__file__).parent
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "migrations" not in path.parts)
VAGUE = re.compile(r"^(utils?|helpers?|managers?|common|misc|base|core|data|info)$")
SQL = re.compile(r"\b(FROM|INTO|UPDATE|JOIN) holdfast\.")
GIVEN_A_PASS = re.compile(r"^from holdfast\.schedule\.context import .*\bPass\b", re.MULTILINE)
LOOPS = [path for path in MODULES if GIVEN_A_PASS.search(path.read_text())]  # their functions are given a `Pass`


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_no_file_is_longer_than_400_lines():
    assert {name(p) for p in MODULES if len(p.read_text().splitlines()) > 400} == set()


def test_no_module_has_a_generic_name():
    assert {name(p) for p in MODULES if VAGUE.match(p.stem)} == set()


def test_test_module_names_are_unique():
    """They are imported by it: the second would not be collected, and a whole run would end with an error."""
    names = Counter(path.name for path in Path(__file__).parent.parent.rglob("test_*.py"))

    assert [each for each, count in names.items() if count > 1] == []


def test_no_function_is_longer_than_60_lines():
    long = {
        f"{name(p)}:{node.name}"
        for p in MODULES
        for node in ast.walk(parsed(p))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (node.end_lineno or 0) - node.lineno > 60
    }
    assert long == set()


def test_kernel_sql_is_above_the_function_that_runs_it():
    """Elsewhere only where a reason is given: the demo watches from outside, the harness moves time, and the number of the
    schema is read before any kernel is at work."""
    allowed = {"apps/demo.py", "testing/__init__.py", "database/revision.py"}
    own_tables = {
        "jobs",
        "periodic",
        "views",
        "api",
        "schedule",
    }  # api: tokens, audit, answers, limits
    outside = [p for p in MODULES if p.parent.name not in own_tables and "services" not in p.parts]  # services have theirs
    places = {name(p) for p in outside if SQL.search(p.read_text())}
    assert places <= allowed


def test_no_loop_has_sql_on_our_tables():
    """S-21: a module whose functions are given a `Pass` reads and writes through functions of other modules."""
    known = {"schedule/kernel.py", "services/exports/reconcile.py", "services/exports/catalog/refresh.py"}
    assert known <= {name(p) for p in LOOPS}
    assert {name(p) for p in LOOPS if SQL.search(p.read_text())} == set()


@pytest.mark.parametrize("blocking", [r"\btime\.sleep\(", r"\brequests\.", r"\bSyncPass\b"])
def test_no_loop_blocks_the_event_loop(blocking: str):
    """S-10. Users may write a plain function, which runs in a thread: the scheduler offers it, and no loop of ours is one."""
    offers_threads = {"schedule/reconcile.py", "schedule/tick.py", "public.py"} if "SyncPass" in blocking else set()
    assert {name(p) for p in LOOPS if re.search(blocking, p.read_text())} == offers_threads


def test_every_loop_is_a_coroutine_function():
    """S-10: none needs a thread."""
    loops = [*kernel_loops(), *holdfast.catalog.loops(settings_class()())]
    assert {loop.name for loop in loops} > {*INTERVALS, "lifecycle", "reconciliation", "schema_cache"}
    assert [loop.name for loop in loops if not inspect.iscoroutinefunction(loop.function)] == []


def test_loops_read_pages_of_100():
    """S-12."""
    size = re.compile(r"^PAGE(?:: Final)? = (\d+)$", re.MULTILINE)
    of_graphs = SOURCE / "services/graphs/instances/moving.py"  # for the pages of all their loops
    sizes = {name(p): int(found[1]) for p in [*LOOPS, of_graphs] if (found := size.search(p.read_text()))}

    known = {"schedule/kernel.py", "schedule/reconcile.py", "services/exports/reconcile.py", name(of_graphs)}
    assert sizes == dict.fromkeys({*known, "services/exports/lifecycle/loop.py"}, 100)


def test_only_a_claim_writes_that_a_job_is_current():
    """K-32."""
    written = re.compile(r"\bis_current = (true|slot_key)\b")
    assert {name(p): len(written.findall(p.read_text())) for p in MODULES if written.search(p.read_text())} == {
        "jobs/claim.py": 1
    }


def test_every_module_has_a_docstring():
    assert {name(p) for p in MODULES if not ast.get_docstring(parsed(p))} == set()


def test_only_the_settings_read_the_environment():
    readers = {name(p) for p in MODULES if re.search(r"os\.(environ|getenv)", p.read_text())}
    assert readers <= {"environment.py", "toolkit/client/environment.py"}, "the second has a test that compares both"


def test_no_import_inside_a_function():
    hidden = {
        name(p)
        for p in MODULES
        for node in ast.walk(parsed(p))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(node)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
    }
    assert hidden == set()


def test_events_page_lists_exactly_the_logged_events():
    used = {event for p in MODULES for event in re.findall(r'\b(?:log\.\w+|say)\(\s*"(\w+)"', p.read_text())}
    used |= set(re.findall(r'Move\.\w+: "(job_\w+)"', (SOURCE / "worker/outcome_writer.py").read_text())) | {"job_ended"}
    assert used == set(EVENTS)


def test_a_service_has_sql_only_on_its_own_tables():
    """What a service needs from another's tables, the other service offers as a function (`offers.py`)."""
    owners = {table: service.name for service in holdfast.catalog.SERVICES for table in service.tables}
    used = re.compile(r"\b(?:FROM|INTO|UPDATE|JOIN|ON|TABLE|REFERENCES|ONLY) holdfast\.(\w+)")
    foreign = {
        f"{path.relative_to(SOURCE)}: {table}"
        for service in holdfast.catalog.SERVICES
        for path in (SOURCE / "services" / service.name).rglob("*.py")
        for table in used.findall(path.read_text())
        if owners.get(table, service.name) != service.name
    }

    assert foreign == set()
    assert len(owners) > 20


def test_metrics_page_lists_exactly_the_exported_metrics():
    for service in holdfast.catalog.SERVICES:
        import_module(f"{service.place}.measures")
    made = {metric.name.removesuffix("_total") for metric in REGISTRY.collect()}
    assert {name.removesuffix("_total") for name in METRICS} == made


def test_all_public_names_exist():
    assert [public for public in holdfast.__all__ if not hasattr(holdfast, public)] == []
    assert sorted(holdfast.__all__) == holdfast.__all__


@pytest.mark.parametrize("forbidden", ["time.time(", "datetime.now(", "datetime.utcnow("])
def test_no_code_uses_the_wall_clock_of_a_process(forbidden: str):
    """The doctor looks at it, to show how far it is off; nothing follows from that. The session of a browser ends by it, as the
    tokens of an identity provider do."""
    assert {name(p) for p in MODULES if forbidden in p.read_text()} <= {"cli/doctor.py", "api/sessions.py"}


def test_views_only_read():
    writes = re.compile(r"\b(INSERT\s+INTO|UPDATE\s+holdfast|DELETE\s+FROM|MERGE\s+INTO|TRUNCATE)\b")
    assert {name(p) for p in MODULES if "jobs/views" in name(p) and writes.search(p.read_text())} == set()
