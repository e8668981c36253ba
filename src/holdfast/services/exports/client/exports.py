"""Write the result of one SELECT to Parquet files, without a mapping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.jobs import Job, Jobs

KIND = "exports.run"


class Exports:
    """`hf.exports`."""

    def __init__(self, api: Api) -> None:
        self._jobs = Jobs(api)

    def run(
        self,
        sql: str,
        to: str,
        *,
        engine: str = "duckdb",
        role: str | None = None,
        timeout: float | None = 900,
        show: bool = True,
        on_progress: Callable[[Job], None] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Export and wait: returns the files, rows and bytes. `JobFailed` if the export failed.

        `to` is a folder on the worker's machine, s3://… or gs://…. Options: catalog, schema, max_seconds.
        """
        given = {"sql": sql, "to": to, "engine": engine, "role": role, **options}
        job = self._jobs.enqueue(KIND, {name: value for name, value in given.items() if value is not None})
        ended = self._jobs.wait(job, timeout=timeout, show=show, on_progress=on_progress)
        result: dict[str, Any] = ended.result
        return result
