"""One ingestion job: progress, counts, the detected dialect, bad rows, and the jobs of its pipeline."""

from __future__ import annotations

from typing import Any, Final

from holdfast.console.view import Shown, View, root_of
from holdfast.services.ingestion.sources import files
from holdfast.services.ingestion.staging import errors
from holdfast.services.ingestion.views import runs

BAD_ROWS: Final = 100
STEPS: Final = 50
PARTS: Final = ("encoding", "delimiter", "quote", "decimal")
WORDS: Final = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar", ".": "point", '"': "double quote", "'": "single quote"}


async def show(view: View) -> Shown:
    """The job. Everything that it reports is text of a file or of a user: the template escapes it."""
    run = await runs.get(view.conn, view.path_number("ingestion_id"))
    outcome = run.outcome or {}
    bad = await errors.listed(view.conn, run.job_id, limit=BAD_ROWS + 1)
    steps = await runs.listed(view.conn, limit=STEPS, pipeline_id=run.pipeline_id) if run.pipeline_id else [run]
    api = root_of(view.request).removesuffix("/console")
    values = {
        "run": run,
        "outcome": outcome,
        "dialect": dialect_of(outcome),
        "file": await files.get(view.conn, run.file_id) if run.file_id else None,
        "bad": bad[:BAD_ROWS],
        "has_more": len(bad) > BAD_ROWS,
        "download": f"{api}/api/ingestion/jobs/{run.job_id}/bad-rows" if outcome.get("bad_rows") else None,
        "steps": steps[:STEPS][::-1],
        "waiting": await runs.waiting_steps(view.conn, run.pipeline_id, limit=STEPS) if run.pipeline_id else [],
        "took": None if run.started_at is None else (run.finished_at or view.now) - run.started_at,
    }
    return Shown("run.html", values, title=f"{run.job_type} {run.job_id}")


def dialect_of(outcome: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and word of each part of the dialect that the file has. Pure."""
    given = outcome.get("dialect")
    if not isinstance(given, dict):
        return []
    return [(name, str(given[name]), WORDS.get(str(given[name]), "")) for name in PARTS if given.get(name) is not None]
