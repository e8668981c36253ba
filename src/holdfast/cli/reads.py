"""Reads of the API, answered from the database without the web framework. Called by: `direct.py`.

Importing FastAPI and building the routes takes a second; the queries take milliseconds. Each function below calls the
same query as the API's route of that path. Whatever it does not know (a parameter, a value that is not valid, an object that
does not exist) raises `NotHandled` or an error of the kernel, and the caller repeats the request with the API in memory, which
gives the exact refusal. `tests/cli/test_transports_agree.py` compares both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from importlib import import_module
from typing import Any, get_args
from uuid import UUID

import psycopg
from pydantic_core import to_jsonable_python

from holdfast.api.live_tokens import has_live_tokens
from holdfast.jobs import control
from holdfast.jobs.model import JobId
from holdfast.jobs.states import State
from holdfast.jobs.views import checkup, explain, failures, history, locks, read, workers
from holdfast.jobs.views.filters import Condition
from holdfast.schedule.read import list_loops, loop_fields
from holdfast.toolkit.cli.transport import Answer

Conn = psycopg.AsyncConnection[Any]
Params = dict[str, Any]
Read = Callable[..., Awaitable[Answer]]
LARGEST_ID = 2**63 - 1024
LONGEST_NAME, LONGEST_KEY = 200, 500


class NotHandled(Exception):
    """This request is for the API itself."""


def find(path: str) -> tuple[Read, list[str]] | None:
    """The read of this path, and the variable parts of the path; None: there is none. Pure."""
    for pattern, function in READS.items():
        if match := re.fullmatch(pattern, path):
            return function, list(match.groups())
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------


def _taken(params: Params, **parsers: Callable[[str], Any]) -> dict[str, Any]:
    """The parameters, each through its parser; None where one was not given."""
    if not params.keys() <= parsers.keys():
        raise NotHandled
    try:
        return {name: None if params.get(name) is None else parse(str(params[name])) for name, parse in parsers.items()}
    except ValueError:
        raise NotHandled from None


def _text(longest: int) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not 1 <= len(text) <= longest or "\x00" in text:
            raise ValueError(text)
        return text

    return parse


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if not (text.isascii() and text.isdecimal() and least <= number <= most):
            raise ValueError(text)
        return number

    return parse


def _fingerprint(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{16}", text):
        raise ValueError(text)
    return text


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment


def _job_id(text: str) -> JobId:
    try:
        return JobId(_number(1, LARGEST_ID)(text))
    except ValueError:
        raise NotHandled from None


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise NotHandled from None


PAGE: dict[str, Callable[[str], Any]] = {"limit": _number(1, 200), "cursor": json.loads}
JOB_FILTERS: dict[str, Callable[[str], Any]] = {
    "state": State,
    "kind": _text(LONGEST_NAME),
    "queue": _text(LONGEST_NAME),
    "condition": Condition,
    "pipeline_id": UUID,
    "worker_id": UUID,
    "slot_key": _text(LONGEST_KEY),
    "parent_id": _number(1, LARGEST_ID),
    "fingerprint": _fingerprint,
    "created_after": _moment,
    "created_before": _moment,
    "q": _text(LONGEST_NAME),
}


def _plain(value: Any) -> Any:
    """Plain JSON values of dataclasses, named tuples and times."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, list):
        value = [item._asdict() if hasattr(item, "_asdict") else item for item in value]
    return to_jsonable_python(value)


def _page(rows: list[Any], limit: int, key: Callable[[Any], Any]) -> Answer:
    """A page out of rows that are one more than `limit` if there is a next page."""
    shown = rows[:limit]
    return Answer(_plain(shown), json.dumps(key(shown[-1])) if len(rows) > limit else None)


# ---------------------------------------------------------------------------------------------------------------------
# Reads
# ---------------------------------------------------------------------------------------------------------------------


async def _jobs(conn: Conn, params: Params) -> Answer:
    taken = _taken(params, **PAGE, **JOB_FILTERS)
    limit, before = taken.pop("limit") or 50, taken.pop("cursor")
    found = await read.list_jobs(conn, limit=limit, before=before, **taken)
    return Answer(_plain(found.jobs), None if found.before is None else json.dumps(found.before))


async def _job(conn: Conn, params: Params, job_id: str) -> Answer:
    _taken(params)
    return Answer(_plain(await read.get_job(conn, _job_id(job_id))))


async def _explain(conn: Conn, params: Params, job_id: str) -> Answer:
    _taken(params)
    return Answer({"job_id": int(job_id), "sentence": await explain.explain(conn, _job_id(job_id))})


async def _history(conn: Conn, params: Params, job_id: str) -> Answer:
    _taken(params)
    await read.get_job(conn, _job_id(job_id))
    return Answer(_plain(await history.history(conn, _job_id(job_id))))


async def _logs(conn: Conn, params: Params, job_id: str) -> Answer:
    logs = import_module("holdfast.jobs.views.logs")  # brings structlog, which few reads need

    def place(text: str) -> list[int]:
        attempt, line = text.split(".")
        return [int(attempt), int(line)]

    def level(text: str) -> str:
        if text not in get_args(logs.Level):
            raise ValueError(text)
        return text

    counts = {"attempt": _number(1, 2**31 - 1), "tail": _number(1, 100_000)}
    taken = _taken(params, **PAGE, **counts, level=level, after=place)
    begin, limit = taken["cursor"] or taken["after"], taken["limit"] or 50
    await read.get_job(conn, _job_id(job_id))
    found = await logs.read_lines(
        conn,
        _job_id(job_id),
        after=None if begin is None else (begin[0], begin[1]),
        attempt=taken["attempt"],
        level=taken["level"] or "debug",
        tail=taken["tail"],
        limit=limit + 1,
    )
    shown = found[:limit]
    rows = [{"id": line.id, **line._asdict()} for line in shown]
    return Answer(_plain(rows), json.dumps(shown[-1].place) if len(found) > limit else None)


async def _failures(conn: Conn, params: Params) -> Answer:
    taken = _taken(params, limit=_number(1, 200), cursor=json.loads)
    return Answer(_plain(await failures.list_failures(conn, limit=taken["limit"] or 50)))


async def _failure(conn: Conn, params: Params, fingerprint: str) -> Answer:
    _taken(params)
    return Answer(_plain(await failures.get_failure(conn, fingerprint)))


async def _pipelines(conn: Conn, params: Params) -> Answer:
    pipelines = import_module("holdfast.jobs.pipelines")  # brings structlog

    taken = _taken(params, **PAGE)
    limit, after = taken["limit"] or 50, taken["cursor"]
    before = None if after is None else (datetime.fromisoformat(after[0]), after[1])
    found = await pipelines.list_pipelines(conn, limit=limit + 1, before=before)
    return _page(found, limit, lambda line: [line.created_at.isoformat(), line.id])


async def _pipeline(conn: Conn, params: Params, pipeline_id: str) -> Answer:
    pipelines = import_module("holdfast.jobs.pipelines")

    _taken(params)
    found = await pipelines.read_pipeline(conn, _uuid(pipeline_id))
    page = await read.list_jobs(conn, limit=read.LONGEST_PAGE, pipeline_id=_uuid(pipeline_id))
    shown = {"id": found.id, "name": found.name, "status": found.status, "counts": found.counts, "jobs": page.jobs}
    return Answer(_plain(shown))


async def _locks(conn: Conn, params: Params) -> Answer:
    taken = _taken(params, **PAGE, key=_text(LONGEST_KEY))
    limit = taken["limit"] or 50
    found = await locks.list_locks(conn, key=taken["key"], after=taken["cursor"] or "", limit=limit + 1)
    return _page(found, limit, lambda lock: lock.key)


async def _workers(conn: Conn, params: Params) -> Answer:
    taken = _taken(params, **PAGE, alive=str)
    if taken["alive"] not in (None, "true", "false", "True", "False"):
        raise NotHandled
    limit = taken["limit"] or 50
    alive = taken["alive"] in ("true", "True")
    found = await workers.list_workers(conn, alive=alive, after=taken["cursor"], limit=limit + 1)
    return _page(found, limit, lambda worker: worker.id)


async def _worker(conn: Conn, params: Params, worker_id: str) -> Answer:
    _taken(params)
    return Answer(_plain(await workers.get_worker(conn, _uuid(worker_id))))


async def _kinds(conn: Conn, params: Params) -> Answer:
    _taken(params)
    return Answer(_plain(await workers.list_kinds(conn)))


async def _loops(conn: Conn, params: Params) -> Answer:
    periodic = import_module("holdfast.jobs.periodic.read")  # brings structlog

    _taken(params)
    jobs = [periodic.periodic_fields(job) for job in await periodic.list_periodic(conn)]
    return Answer(_plain([*jobs, *(loop_fields(loop) for loop in await list_loops(conn))]))


async def _drain(conn: Conn, params: Params) -> Answer:
    _taken(params)
    controls = await control.controls(conn)
    found = next((one for one in controls if one.kind == control.EVERYTHING and one.drained), None)
    return Answer({"enabled": found is not None, "reason": found and found.reason, "actor": found and found.actor})


async def _doctor(conn: Conn, params: Params) -> Answer:
    _taken(params)
    found = await checkup.check_up(conn)
    fields = {name: getattr(found, name) for name in found.__dataclass_fields__}
    return Answer(_plain({"version": "command line", "knows_somebody": await has_live_tokens(conn), **fields}))


READS: Mapping[str, Read] = {
    r"/api/jobs": _jobs,
    r"/api/jobs/(\d+)": _job,
    r"/api/jobs/(\d+)/explain": _explain,
    r"/api/jobs/(\d+)/history": _history,
    r"/api/jobs/(\d+)/logs": _logs,
    r"/api/failures": _failures,
    r"/api/failures/([0-9a-f]{16})": _failure,
    r"/api/pipelines": _pipelines,
    r"/api/pipelines/([^/]+)": _pipeline,
    r"/api/locks": _locks,
    r"/api/workers": _workers,
    r"/api/workers/([^/]+)": _worker,
    r"/api/(?:job-)?kinds": _kinds,
    r"/api/periodic": _loops,
    r"/api/ops/drain": _drain,
    r"/api/doctor": _doctor,
}
