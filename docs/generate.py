"""Make the pages of docs/reference from the code. Run it after a change of the code: `python docs/generate.py`.

Every page is a function of the code, and the schema's also of a migrated database: `--url` names one, without it a
throw-away Postgres is started. A test compares the committed pages with what is made here.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from alembic.script import ScriptDirectory
from fastapi.routing import APIRoute
from psycopg.rows import tuple_row
from pydantic import BaseModel
from typer.main import get_command
from typer.testing import CliRunner

import holdfast
import holdfast.jobs
import holdfast.testing
import holdfast.worker.loop  # everything that counts is loaded with it
from holdfast import catalog, errors
from holdfast.api import fenced, worker_protocol
from holdfast.api.app import NOUNS, make_app
from holdfast.api.lazy_routes import built
from holdfast.api.policy import POLICY, Role
from holdfast.api.problem_types import PROBLEMS
from holdfast.api.problems import code_of
from holdfast.cli import LazyCommand, app
from holdfast.cli.table import commands as command_table
from holdfast.crashpoints import POINTS
from holdfast.database import migrate
from holdfast.database.pool import pool
from holdfast.environment import compatibility_names, standard_names, variable
from holdfast.jobs.model import Lock
from holdfast.jobs.states import ENDED, LEGAL_MOVES, LIVE, WAITING, Move, State, legal_pairs
from holdfast.schedule.kernel import kernel_loops
from holdfast.schedule.registry import Loop
from holdfast.schedule.scheduler import SchedulerOptions
from holdfast.settings import settings_class
from holdfast.telemetry.metrics import REGISTRY
from holdfast.telemetry.names import EVENTS, LOOP_EVENTS, METRICS, PLANE_METRICS
from holdfast.toolkit.cli.exit_codes import Exit
from holdfast.worker.kinds import Job, Options, Policy
from holdfast.worker.options import WorkerOptions

FOLDER = Path(__file__).resolve().parent / "reference"
SOURCE = Path(holdfast.__file__).resolve().parent
NOTE = "<!-- Made by docs/generate.py from the code. Change the code, then run it. -->"


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", NOTE, *(part.strip("\n") for part in parts)]) + "\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def first_line(thing: object) -> str:
    """The first sentence of a docstring, on one line."""
    words = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return " ".join(words.split())


# ---------------------------------------------------------------------------------------------------------------------
# States
# ---------------------------------------------------------------------------------------------------------------------


PLAIN_MEANINGS = {  # of the names that speak for themselves in the code
    "COMPLETED": "the work is done",
    "FAILED": "it does not run again unless an operator retries it",
    "CANCELLED": "it was cancelled",
    "CLAIM": "a worker takes it",
    "COMPLETE": "the work is done",
    "FAIL": "it cannot work, or its budget is used up",
    "CANCEL": "a user or a loop cancelled it, or its parent did not complete",
}


def states() -> str:
    said = PLAIN_MEANINGS | comments_of(State) | comments_of(Move)
    sets = {"waiting": WAITING, "live": LIVE, "ended": ENDED}
    return page(
        "States and moves",
        "The states of a job and every legal move between them, from `src/holdfast/jobs/states.py`. The database enforces the "
        "same pairs by the trigger `legal_moves_only`.",
        f"```mermaid\n{diagram()}\n```",
        "## States",
        table(
            ["State", "Meaning", "Belongs to"],
            [[code(s.value), said[s.name], ", ".join(name for name, among in sets.items() if s in among)] for s in State],
        ),
        "## Moves",
        "A move is a transition; the history of a job has its name.",
        table(
            ["Move", "When", "From → to"],
            [[code(m.value), said[m.name], "<br>".join(map(arrow, sorted(LEGAL_MOVES[m])))] for m in Move],
        ),
        "The history also has `act`: a request of an operator that has not changed the state yet, such as a cancel request.",
    )


def arrow(pair: tuple[State, State]) -> str:
    return f"{code(pair[0].value)} → {code(pair[1].value)}"


def diagram() -> str:
    """One arrow per pair of states, with every move that takes it."""
    lines = ["stateDiagram-v2", "    direction LR", "    [*] --> pending: enqueue", "    [*] --> blocked: enqueue"]
    for pair in legal_pairs():
        moves = ", ".join(move.value for move in Move if pair in LEGAL_MOVES[move])
        lines.append(f"    {pair[0].value} --> {pair[1].value}: {moves}")
    return "\n".join([*lines, *(f"    {state.value} --> [*]" for state in State if state in ENDED)])


def comments_of(cls: type) -> dict[str, str]:
    """The remark behind each line of a class body: `NAME = value  # remark`."""
    found = re.findall(r"^ +(\w+)\b[^#\n]*[:=][^#\n]*  # (.+)$", inspect.getsource(cls), re.MULTILINE)
    return dict(found)


# ---------------------------------------------------------------------------------------------------------------------
# Settings, events, errors
# ---------------------------------------------------------------------------------------------------------------------


def settings() -> str:
    owners = {
        name: part.__module__ for part in reversed(settings_class().__mro__) for name in vars(part).get("__annotations__", {})
    }
    sections: dict[str, list[list[str]]] = {}
    for name, field in settings_class().model_fields.items():
        names = [variable(name), *standard_names(field)]
        sections.setdefault(owners[name], []).append([
            "<br>".join(map(code, names)), code(type_name(field.annotation)), default_said(field),
            field.description or "", "<br>".join(map(code, compatibility_names(field))),
        ])  # fmt: skip
    head = ["Variable", "Type", "Default", "Meaning", "Compatibility name"]
    parts = [
        part for owner, rows in sorted(sections.items(), key=by_place) for part in (f"## {title_of(owner)}", table(head, rows))
    ]
    return page(
        "Settings",
        "Read once from the environment by the [command line](cli.md) and by `holdfast.lifespan()`. Code that uses the library "
        "passes arguments instead. An invalid value is refused at start, with the variable, the value and the allowed values.",
        "Only `HOLDFAST_…` is read, with one exception: names without that prefix in the first column are standard names of "
        "the AWS SDKs. Credentials of object stores that are not set here are taken from where the SDKs of AWS "
        "(`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, profile, web identity, instance role) and of "
        "Google Cloud (`GOOGLE_APPLICATION_CREDENTIALS`, metadata server) find them. The last column has names that count only "
        "with `HOLDFAST_COMPATIBILITY_NAMES=true`. Where several names of a setting are set, the leftmost and topmost counts.",
        *parts,
        "Further options of a worker are on the [options page](options.md#worker-options).",
    )


TITLES = {
    "holdfast.settings": "Kernel",
    "holdfast.engines.settings": "SQL engines",
    "holdfast.stores.settings": "Object stores",
}


def default_said(field: Any) -> str:
    return default_of(field.get_default(call_default_factory=True))


def title_of(owner: str) -> str:
    """The name of a shared package's section, or of a service's."""
    return TITLES.get(owner, owner.split(".")[-2].capitalize())


def by_place(section: tuple[str, Any]) -> tuple[int, str]:
    """The kernel first, then the shared packages, then the services by name."""
    return (list(TITLES).index(section[0]) if section[0] in TITLES else len(TITLES), section[0])


def type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else re.sub(r"\b\w+\.", "", str(annotation))


def default_of(value: object) -> str:
    return "none" if value is None else code(f"{value:g}" if isinstance(value, float) else value)


def events() -> str:
    return page(
        "Events",
        "Every event that is logged, from `src/holdfast/telemetry/names.py`. Names are stable; fields may be added. As a "
        "library Holdfast logs to the standard logger `holdfast`.",
        table(["Event", "Meaning"], [[code(name), meaning] for name, meaning in EVENTS.items()]),
        "Each [loop](loops.md) has two more, under its own name:",
        table(["Event", "Meaning"], [[code(name), meaning] for name, meaning in LOOP_EVENTS.items()]),
    )


def metrics_page() -> str:
    catalog.loops(settings_class()())  # imports the modules in which services define their metrics
    for service in catalog.SERVICES:
        service.module("measures")
    kinds = {metric.name: metric.type for metric in REGISTRY.collect()}
    kinds |= {
        name.removesuffix("_total"): "counter"
        for name, meaning in PLANE_METRICS.items()
        if name.endswith("_total") and "a gauge" not in meaning
    }
    rows = [
        [code(name), kinds.get(name.removesuffix("_total"), "gauge"), meaning]
        for name, meaning in (METRICS | PLANE_METRICS).items()
    ]
    return page(
        "Metrics",
        "Every metric, from `src/holdfast/telemetry/names.py`. `holdfast serve` has them at `/metrics`. What comes from the "
        "database is the same in every replica: take the maximum, not the sum. The counters of a process are in the registry "
        "`holdfast.telemetry.metrics.REGISTRY` "
        "of each process. The label `job_name` is the name of a [loop](loops.md).",
        table(["Metric", "Type", "Meaning"], rows),
    )


def loops() -> str:
    rows = [
        [code(loop.name), interval(loop.every), loop.description]
        for loop in (*kernel_loops(), *catalog.loops(settings_class()()))
    ]
    return page(
        "Loops",
        "## The loops that are there",
        "Each runs in every [scheduler](../explanation/periodic-loops.md), and each tick in one of them. The "
        "[settings](settings.md) `HOLDFAST_<LOOP>_JOB_INTERVAL_SECONDS` change the intervals.",
        table(["Loop", "Every", "What a pass does"], rows),
        "## Loop fields",
        "What a `holdfast.Loop` is made of. `@holdfast.reconciler` takes the same keywords but for `function`, `is_quiet` "
        "(there `quiet`) and `description`, which is the first line of the docstring, and one more: `backoff`, how long a key "
        "that failed is left alone.",
        fields_table(Loop),
        "## Scheduler options",
        fields_table(SchedulerOptions),
    )


def interval(every: timedelta | None) -> str:
    assert every is not None
    seconds = int(every.total_seconds())
    return f"{seconds // 3600} h" if seconds % 3600 == 0 else f"{seconds} s"


def errors_page() -> str:
    drawn = textwrap.dedent((errors.__doc__ or "").split("\n\n")[1])
    found = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.HoldfastError)]
    found.sort(key=lambda cls: inspect.getsourcelines(cls)[1])
    rows = [[code(cls.__name__), code(base_of(cls)), carried(cls), first_line(cls)] for cls in found]
    return page(
        "Errors",
        "Every error that is raised on purpose, from `src/holdfast/errors.py`. The message says what happened and what to do.",
        f"```text\n{drawn}\n```",
        table(["Error", "Is a", "Carries", "Meaning"], rows),
        "A handler may raise `holdfast.Permanent`, or a subclass of it, to fail at once. It is not a `HoldfastError`.",
    )


def base_of(cls: type) -> str:
    return cls.__mro__[1].__name__


def carried(cls: type) -> str:
    """What an error's own constructor stores on it."""
    if "__init__" not in vars(cls):
        return ""
    targets = re.findall(r"self\.(\w+)(?=[^=\n]*=)", inspect.getsource(vars(cls)["__init__"]))
    return ", ".join(map(code, dict.fromkeys(targets)))


# ---------------------------------------------------------------------------------------------------------------------
# Options
# ---------------------------------------------------------------------------------------------------------------------

MEANINGS: dict[type, dict[str, str]] = {
    Options: {
        "tx": "your transaction: a psycopg connection, or an SQLAlchemy session or connection",
        "run_after": "not before this time, or this long from now by the database's clock",
        "priority": "smaller runs first",
        "queue": "only workers of this queue claim it",
        "idempotency_key": "the same key with the same arguments returns the same job; with other arguments it is refused",
        "unique_key": "returns the existing job of this kind with this key instead of a second one",
        "unique_while": "how long the unique key counts: while the job waits for its first run, or until it has ended",
        "slot_key": "the slot it belongs to",
        "locks": "the locks it needs; replaces those of the kind",
        "after": "ids of jobs that must end first",
        "if_parent_fails": "what to do when one of them fails or is cancelled",
        "pipeline_id": "the pipeline it belongs to",
        "max_attempts": "how many errors fail it",
        "max_crashes": "how many crashes quarantine it",
        "max_runtime": "how long one attempt may take",
        "step": "the name of its step, unique among its parent's children",
    },
    Policy: {
        "queue": "the queue of its jobs",
        "priority": "smaller runs first",
        "max_attempts": "how many errors fail a job",
        "max_crashes": "how many crashes quarantine a job",
        "max_runtime": "how long one attempt may take",
        "version": "stored with each job as `kind_version`",
        "retry": "which exceptions are retried, and after which delay",
        "extra": "the extra that the handler needs, like `exports`: a worker without it does not take the kind",
        "on_shutdown": "what happens to a job that has not ended when its worker must exit: `release` returns it to the queue, "
        "`fail` fails it with `Worker received SIGTERM`, and its checkpoints raise `ShutdownRequested`",
        "nice": "by how much the process of a job yields the CPU to others, from `0` to `19`, in addition to its worker's; "
        'needs `run_in="process"`',
        "max_memory": "what the process of a job may allocate, as `'512MiB'` or in bytes; needs `run_in=\"process\"`",
        "run_in": "`loop`, `thread` or `process`; by default async functions run in the event loop and plain ones in a thread",
        "public": "`False`: the HTTP API and the command line refuse to enqueue it; only Python code may",
        "locks": "the locks it needs: a list whose keys may name arguments, such as `Lock('table:{table}')`, or a function of "
        "the job's arguments, which only Python code can call",
        "slot": "the key of its slot: a template such as `'table:{table}'`, or a function of the job's arguments",
        "unique": "its unique key: a template, or a function of the job's arguments",
        "cron": "makes it a periodic job: workers enqueue it at each due time (minute hour day month weekday)",
        "every": "instead of `cron`: the time from one run to the next, at least one second",
        "timezone": "of `cron`, an IANA name such as `Europe/Zurich`; default UTC",
        "catch_up": "which due times that passed without a worker are enqueued: `last`, `all` (at most 100) or `skip`",
        "args": "the arguments of each run of a periodic job; a parameter `due_at` gets the due time",
    },
    WorkerOptions: {
        "queues": "which queues it claims from",
        "concurrency": "how many handlers run at once",
        "beat": "how often it renews its lease while it holds jobs",
        "poll": "how often it polls while it holds no jobs; default: at every second heartbeat",
        "lease": "how long it keeps its jobs without a heartbeat",
        "grace": "how long running jobs get at shutdown",
        "name": "the displayed name; default: the name of the host",
        "pod": "the pod, shown with the worker",
        "git_sha": "the commit of its code, shown with the worker",
        "runner": "the kind of its process",
        "largest_batch": "the maximum number of jobs in one claim",
        "keep_logs": "whether the last lines that handlers log are kept with their jobs (`HOLDFAST_KEEP_JOB_LOGS`)",
        "max_memory": 'memory limit in bytes of `run_in="process"` kinds without `max_memory` (`HOLDFAST_JOB_MAX_MEMORY`)',
        "presence": "keeps a database session open whose end shows that it died (`HOLDFAST_RESCUE_ON_DISCONNECT`)",
        "most": "the number of jobs after which it stops; `--once` is 1",
    },
    Loop: {
        "name": "small letters, digits and `_`; unique in a database",
        "function": "called with a `Pass`; a plain function runs in a thread and gets a `SyncPass`",
        "every": "from one due time to the next",
        "cron": "instead of `every`: minute hour day month weekday, as in crontab",
        "timezone": "of the cron expression",
        "first_run": "when a database has never seen the loop",
        "catch_up": "how many missed ticks run later, one by one; default: none",
        "lease": "how long a process that stopped renewing keeps the loop",
        "retry_after": "when a failed tick is tried again, if the next is further away; then after twice that, at most an hour",
        "is_needed": "called with a connection when a scheduler starts: True runs the loop immediately",
        "is_quiet": "of passes that found nothing to do, only the first and one in five minutes are logged at INFO",
        "description": "one line, shown with the loop",
    },
    SchedulerOptions: {
        "look": "how often it polls the rows of its loops: a triggered run starts within this time",
        "grace": "how long running passes may continue when it is asked to stop",
        "name": "the displayed name; default: the name of the host",
        "connections": "how many connections its passes share",
    },
    Lock: {
        "key": "its name, of 1 to 500 characters",
        "most": "how many may hold it together: 1 exclusive, n permits, None shared",
        "when_busy": "`wait` until it is free, or `reject` the enqueue with `LockBusy`",
    },
}


def options() -> str:
    return page(
        "Options",
        "## Enqueue options",
        "The keywords of `kind.using(…)`: options of one job, such as its transaction. "
        "From `Options` in `src/holdfast/worker/kinds.py`.",
        fields_table(Options),
        "## Policy fields",
        "The keywords of `@job(kind, …)`: how jobs of a kind are run, unless an enqueue says otherwise.",
        fields_table(Policy),
        "## Lock fields",
        fields_table(Lock),
        "## Worker options",
        "The fields of `WorkerOptions`. [`holdfast worker run`](cli.md#holdfast-worker-run) takes the queues and the "
        "concurrency as options, and `beat`, `lease`, `grace` and `name` from [settings](settings.md).",
        fields_table(WorkerOptions),
    )


def fields_table(cls: type) -> str:
    """The fields of a class as they stand in its source. A field without a meaning above is an error here."""
    meanings = MEANINGS[cls]
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    fields = [line for line in body.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
    names = [ast.unparse(field.target) for field in fields]
    if set(names) != set(meanings):
        raise ValueError(f"say in docs/generate.py what {set(names) ^ set(meanings)} of {cls.__name__} means")
    rows = []
    for name, field in zip(names, fields, strict=True):
        row = [code(name), code(ast.unparse(field.annotation)), code(written(cls, field.value)) if field.value else ""]
        rows.append([*row, meanings[name]])
    if not any(row[2] for row in rows):
        return table(["Name", "Type", "Meaning"], [[name, kind, meaning] for name, kind, _, meaning in rows])
    return table(["Name", "Type", "Default", "Meaning"], rows)


def written(cls: type, default: ast.expr) -> str:
    """A default as it stands in the source; a constant that is a number, as that number."""
    named = getattr(sys.modules[cls.__module__], default.id, None) if isinstance(default, ast.Name) else None
    return str(named) if isinstance(named, int) else ast.unparse(default)


# ---------------------------------------------------------------------------------------------------------------------
# Python names
# ---------------------------------------------------------------------------------------------------------------------


def python() -> str:
    public = [describe(name, getattr(holdfast, name)) for name in holdfast.__all__]
    testing = [describe(name, getattr(holdfast.testing, name)) for name in holdfast.testing.__all__]
    return page(
        "Python names",
        "## `holdfast`",
        "Everything a program needs is imported from `holdfast`.",
        *public,
        describe("Job", Job),
        "## `holdfast.testing`",
        "For the tests of those who write handlers.",
        *testing,
        "## Crash points",
        "Places where a test can make a process die: `crash_at(name)` in process, or "
        "[`HOLDFAST_CRASH_AT`](settings.md) for a worker process, which then kills itself with SIGKILL: "
        "`<name>`, or `<name>:3` for the third time it comes there. "
        "`holdfast.crashpoint(name)` in a handler adds one of your own.",
        table(["Point", "What has happened there"], crash_points()),
        "## The verbs",
        "One module for each thing that can happen to a job, in `holdfast.jobs`. Each function takes an open "
        "`psycopg.AsyncConnection`. The [client](#client) has the everyday ones; these are for your own transaction, and for "
        "tests.",
        *verbs(),
    )


def describe(name: str, thing: Any) -> str:
    """A heading, the signature, the first sentence, and the public methods of a class."""
    said = first_line(thing)
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        return f"### `{name}`\n\n{said}\n\nOne of {', '.join(code(member.value) for member in thing)}."
    lines = [f"### `{name}`", block(signature(name, thing)), said]
    if isinstance(thing, type):
        lines.append(members(thing))
    return "\n\n".join(line for line in lines if line)


def block(text: str) -> str:
    return f"```text\n{text}\n```"


def members(cls: type) -> str:
    rows = []
    for name, member in vars(cls).items():
        if name.startswith("_") or name in getattr(cls, "_fields", ()) or is_field(cls, name):
            continue
        if isinstance(member, property):
            rows.append([code(name), first_line(member)])
        elif inspect.isfunction(member):
            rows.append([code(signature(name, member, without_self=True, wide=True)), first_line(member)])
    return table(["Member", "Meaning"], rows) if rows else ""


def is_field(cls: type, name: str) -> bool:
    return dataclasses.is_dataclass(cls) and name in {field.name for field in dataclasses.fields(cls)}


def signature(name: str, thing: Any, *, without_self: bool = False, wide: bool = False) -> str:
    """The call as people read it: annotations as they stand in the source."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    parameters = [one for one in list(found.parameters.values())[1 if without_self else 0 :] if not one.name.startswith("_")]
    words = list(marked(parameters))
    back = f" -> {annotation(found.return_annotation)}" if found.return_annotation is not found.empty else ""
    if isinstance(thing, type):
        back = ""
    short = f"{name}({', '.join(words)}){back}"
    if wide or len(short) <= 120:
        return short
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){back}"


def marked(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """The parameters, with the star that stands before the ones that need their name."""
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        text = f"{stars}{parameter.name}"
        if parameter.annotation is not parameter.empty:
            text += f": {annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {default_text(parameter.default)}"
        yield text


def annotation(given: Any) -> str:
    """As it stands in the source, without the modules that every reader knows."""
    text = given if isinstance(given, str) else getattr(given, "__forward_arg__", None) or inspect.formatannotation(given)
    return re.sub(r"\b(?:psycopg|typing|collections\.abc|datetime|contextlib)\.", "", text)


def default_text(value: object) -> str:
    text = repr(value).removeprefix("datetime.")
    return "…" if text.startswith("<") or len(text) > 60 else text


def crash_points() -> list[list[str]]:
    return [[code(name), meaning] for name, meaning in POINTS.items()]


def verbs() -> Iterator[str]:
    for info in sorted(pkgutil.iter_modules(holdfast.jobs.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"holdfast.jobs.{info.name}")
        rows = []
        for name, function in vars(module).items():
            own = inspect.isfunction(function) and function.__module__ == module.__name__
            if own and not name.startswith("_") and takes_connection(function):
                rows.append([code(signature(name, function, wide=True)), first_line(function)])
        if rows:
            yield f"### `holdfast.jobs.{info.name}`\n\n{first_line(module)}\n\n" + table(["Function", "Meaning"], rows)


def takes_connection(function: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(function).parameters), "") == "conn"


# ---------------------------------------------------------------------------------------------------------------------
# The schema
# ---------------------------------------------------------------------------------------------------------------------

COLUMNS = """
    SELECT a.attname, coalesce(
               (SELECT format('%%s, %%s', format_type(t.typbasetype, -1), pg_get_constraintdef(k.oid))
                FROM pg_type t JOIN pg_constraint k ON k.contypid = t.oid WHERE t.oid = a.atttypid AND t.typtype = 'd'),
               format_type(a.atttypid, a.atttypmod)), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attidentity
    FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = %(table)s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Not-null constraints have rows of their own from Postgres 18 on; the column says it already.
CONSTRAINTS = """
    SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid = %(table)s::regclass AND contype IN ('p', 'u', 'f', 'c') ORDER BY position(contype::text IN 'pufc'), conname
"""
INDEXES = """
    SELECT c.relname, pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = %(table)s::regclass AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid
                                                            AND k.contype IN ('p', 'u'))
    ORDER BY c.relname
"""


def schema(url: str) -> str:
    sql = migrations_sql()
    remarks = table_remarks(sql)
    names = re.findall(r"^CREATE TABLE holdfast\.(\w+)", sql, re.MULTILINE)
    with psycopg.connect(url, row_factory=tuple_row) as conn:
        conn.execute("SET search_path TO pg_catalog")  # so that every name is written in full, whoever asks
        found = [table_page(conn, name, remarks.get(name, ""), column_remarks(sql, name)) for name in names]
        rules = trigger_rules(conn)
    return page(
        "Schema",
        f"The tables in the schema `holdfast`, as the catalog of a migrated database has them (revision "
        f"`{migrate.status(url).wanted}`). Read them as you like. Write to them through the library only: the constraints and "
        "the triggers refuse what cannot be, but they cannot know what you meant.",
        *found,
        "## Trigger `legal_moves_only`",
        "On `holdfast.jobs`, after every update. It refuses a change of state that is not a [legal move](states.md), an "
        "`attempt_no` or a `fence_token` that falls, and an attempt that is replaced without having ended.",
        "## Trigger `valid_values_only`",
        "On `holdfast.jobs`, after an insert and after an update of the columns that its rules name. A row that breaks a rule "
        "is refused like one that breaks a constraint; the error has the name of the rule.",
        table(["Rule", "Refuses a row with"], rules),
        "## Sequence `holdfast.fence_token`",
        sequence_remark(sql),
    )


def trigger_rules(conn: psycopg.Connection[Any]) -> list[list[str]]:
    """The rules of `valid_values_only`, from the function that names the broken one."""
    (source,) = conn.execute("SELECT prosrc FROM pg_proc WHERE oid = 'holdfast.refuse_values'::regproc").fetchone() or ("",)
    found = [[code(rule), code(refused)] for refused, rule in re.findall(r"WHEN (.+) THEN '(\w+)'", source.replace("NEW.", ""))]
    (last,) = re.findall(r"ELSE '(\w+)'", source)
    return [*found, [code(last), "a key or step of more than 1,500 bytes"]]


def table_page(conn: psycopg.Connection[Any], name: str, remark: str, remarks: dict[str, str]) -> str:
    asked = {"table": f"holdfast.{name}"}
    columns = [
        [code(column), code(kind), "" if required else "yes", code(plain(default or ("identity" if identity else ""))),
         remarks.get(column, "")]
        for column, kind, required, default, identity in conn.execute(COLUMNS, asked)
    ]  # fmt: skip
    parts = [f"## `{name}`", remark, table(["Column", "Type", "Null", "Default", "Remark"], columns)]
    constraints = [[code(constraint), code(plain(definition))] for constraint, definition in conn.execute(CONSTRAINTS, asked)]
    parts.append(table(["Constraint", "Says"], constraints) if constraints else "")
    indexes = [[code(index), code(short_index(definition))] for index, definition in conn.execute(INDEXES, asked)]
    parts.append(table(["Index", "On"], indexes) if indexes else "")
    return "\n\n".join(part for part in parts if part)


def short_index(definition: str) -> str:
    unique = "unique " if definition.startswith("CREATE UNIQUE") else ""
    return unique + plain(definition.split(" USING btree ", 1)[-1])


def plain(expression: str) -> str:
    """Without the casts that Postgres writes down for itself."""
    return re.sub(r"::(text|double precision|interval|jsonb)\b(\[\])?", "", expression)


def migrations_sql() -> str:
    revisions = ScriptDirectory.from_config(migrate._config()).walk_revisions()
    return "\n".join(reversed([script.module.UPGRADE for script in revisions]))


def table_remarks(sql: str) -> dict[str, str]:
    """The remark right above each CREATE TABLE."""
    found = re.findall(r"((?:^-- .*\n)+)CREATE TABLE holdfast\.(\w+)", sql, re.MULTILINE)
    return {name: " ".join(line.removeprefix("-- ") for line in remark.splitlines()) for remark, name in found}


def column_remarks(sql: str, name: str) -> dict[str, str]:
    """The remark behind each column."""
    body = re.search(rf"^CREATE TABLE holdfast\.{name} \(\n(.*?)^\)", sql, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^    (\w+)\b[^\n]*? -- (.+)$", body[1], re.MULTILINE)) if body else {}


def sequence_remark(sql: str) -> str:
    found = re.search(r"((?:^-- .*\n)+)CREATE SEQUENCE", sql, re.MULTILINE)
    return " ".join(line.removeprefix("-- ") for line in found[1].splitlines()) if found else ""


# ---------------------------------------------------------------------------------------------------------------------
# The command line
# ---------------------------------------------------------------------------------------------------------------------

PLAIN = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def cli() -> str:
    parts = [f"## `{' '.join(['holdfast', *command])}`\n\n{block(without_shared(help_of(command)))}" for command in commands()]
    shared = SHARED.search(help_of(["job", "list"]))
    assert shared is not None, "every command has the shared options"
    return page(
        "Command line",
        "The output of `--help`. `python -m holdfast` is the same program. Data goes to standard output, messages go to "
        "standard error. An error message says what happened and what to do.",
        "## Shared options",
        "Every command that prints data has these options; they are left out below. Programs have `--debug` only.",
        block(shared[0].strip("\n")),
        "## Exit codes",
        table(["Code", "Meaning"], [[code(one.value), comments_of(Exit)[one.name]] for one in Exit]),
        "Programs that run until they are stopped (`up`, `serve`, `worker run`, `worker remote`, `scheduler run`) exit with 1 "
        "if they cannot start.",
        "## Commands",
        table(
            ["Command", "Purpose"],
            [[f"[`{name}`](#holdfast-{name})", entry.purpose] for name, entry in command_table().items()],
        ),
        *parts,
    )


SHARED = re.compile(r"^╭─ Shared options ─.*?^╰─+╯\n?", re.MULTILINE | re.DOTALL)


def without_shared(text: str) -> str:
    """The help of a command without the panel of the shared options. Pure."""
    return SHARED.sub("", text).strip("\n")


def commands() -> Iterator[list[str]]:
    """Every command and group, as the words that lead there."""

    def below(group: Any, words: list[str]) -> Iterator[list[str]]:
        yield words
        for name, command in getattr(group, "commands", {}).items():
            yield from below(command.load() if isinstance(command, LazyCommand) else command, [*words, name])

    return below(get_command(app), [])


def help_of(command: list[str]) -> str:
    result = CliRunner().invoke(app, [*command, "--help"], env=PLAIN, prog_name="holdfast", color=False)
    text = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


# ---------------------------------------------------------------------------------------------------------------------


# ---------------------------------------------------------------------------------------------------------------------
# The HTTP API
# ---------------------------------------------------------------------------------------------------------------------


def http() -> str:
    parts = []
    for noun in (*NOUNS, *catalog.nouns()):
        rows = [[code(route.method), code(route.path), code(route.action), str(route.status), first_line(route.handler)
                 if route.alias_of is None else f"the same as {code(route.alias_of)}"] for route in noun.declared]  # fmt: skip
        parts.append(f"## {noun.noun.capitalize()}\n\n" + table(["Method", "Path", "Action", "Status", "What it does"], rows))
    return page(
        "HTTP API",
        "Every route of `holdfast serve`, with its action (see [roles](roles.md)) and the status of a successful response; "
        "errors are [problems](problems.md). [openapi.json](openapi.json) is the OpenAPI document, including the "
        "worker protocol.",
        'A successful response is `{"data": …}`, for a list also `page`. Lists take `limit` (1 to 200) and `cursor`. '
        "With an `Idempotency-Key`, a repeated write returns the stored response for a day. `X-Request-Id` is echoed.",
        *parts,
    )


def roles() -> str:
    rows = []
    for action, rule in POLICY.items():
        marks = [
            "anyone" if rule.anyone else "yes" if role in rule.roles else "own" if role in rule.own else "" for role in Role
        ]
        rows.append([code(action), rule.says, *marks, "yes" if rule.needs_reason else "of others'" if rule.asks_why else ""])
    said = comments_of(Role)
    return page(
        "Roles",
        "The permissions of each role, from `src/holdfast/api/policy.py`, which the code uses and a test checks for every "
        "route and every role. `own`: only for objects of the caller. Everything else is denied.",
        table(["Role", "Is"], [[code(role.value), said[role.name]] for role in Role]),
        table(["Action", "Means to", *(role.value for role in Role), "Reason needed"], rows),
        "An identity provider may also grant the permission `backoffice.data_management.sync`, which is `jobs.recover` by "
        "another name.",
    )


def problems_page() -> str:
    rows = [[code(code_of(slug)), str(kind.status), kind.title, kind.advice] for slug, kind in PROBLEMS.items()]
    return page(
        "Problems",
        "Error responses follow RFC 9457 (`application/problem+json`) and have a stable `code`. `type` is a path, "
        "`/problems/<slug>`, with the same text as this table.",
        table(["Code", "Status", "Title", "What to do"], rows),
    )


def openapi() -> str:
    app = make_app(pool("postgresql://nowhere"), nouns=catalog.nouns())
    return json.dumps(app.openapi() | {"info": {"title": app.title, "version": "0"}}, indent=1, sort_keys=True) + "\n"


def worker_protocol_page() -> str:
    """Every path of the worker protocol, with what it takes."""
    parts = [
        "What a worker without a database asks of the HTTP API, as JSON. Time spans are seconds. Every request carries "
        "`Authorization: Bearer <token>` with a token of role `worker`. Where it says *under its attempt*, it also carries "
        '`If-Match: "<attempt_id>"` with the attempt id of the claim: an attempt that was replaced gets 412 `STALE_ATTEMPT`, '
        "and nothing was written; without the header it is 428 `ATTEMPT_REQUIRED`. What goes wrong is answered as a problem "
        "(RFC 9457) with a `code`. Why it is so is explained in [Remote workers](../explanation/remote-workers.md).",
    ]
    for route in built(worker_protocol.router.routes):
        assert isinstance(route, APIRoute)
        needs = [one.call for one in route.dependant.dependencies]
        under = " *Under its attempt.*" if fenced.shown_attempt in needs else ""
        said = " ".join((route.endpoint.__doc__ or "").split())
        parts += [f"## `{min(route.methods)} {route.path}`", f"{said}{under}"]
        parts += [_fields_said(one.model) for one in needs if hasattr(one, "model")]
    return page("The worker protocol", *parts)


def _fields_said(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    needed = set(schema.get("required", ()))
    rows = [[code(name), _json_type(one), "yes" if name in needed else ""] for name, one in schema["properties"].items()]
    return table(["Field", "Type", "Needed"], rows)


def _json_type(schema: dict[str, Any]) -> str:
    """A JSON schema in few words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_json_type(one) for one in schema["anyOf"]))
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[-1].removeprefix("Said").lower()
    if schema.get("type") == "array":
        return f"list of {_json_type(schema['items'])}"
    return str(schema.get("format") or schema.get("type") or "any JSON")


def pages(url: str) -> dict[str, str]:
    """Every page by its file's name."""
    return {
        "states.md": states(),
        "settings.md": settings(),
        "events.md": events(),
        "metrics.md": metrics_page(),
        "loops.md": loops(),
        "errors.md": errors_page(),
        "options.md": options(),
        "python.md": python(),
        "schema.md": schema(url),
        "cli.md": cli(),
        "http.md": http(),
        "roles.md": roles(),
        "problems.md": problems_page(),
        "openapi.json": openapi(),
        "worker-protocol.md": worker_protocol_page(),
    }


def write(url: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages(url).items():
        (FOLDER / name).write_text(text)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--url"]:
        write(arguments[1])
        return
    with holdfast.testing.postgres() as url:
        write(url)


if __name__ == "__main__":
    main(sys.argv[1:])
