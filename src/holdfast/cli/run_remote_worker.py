"""Run a worker with the options of `holdfast worker remote`. Called by: `remote_worker.py`."""

from __future__ import annotations

from holdfast import catalog
from holdfast.apps.remote_worker import work_remotely
from holdfast.apps.telemetry import begin_telemetry
from holdfast.cli.program_settings import program_settings
from holdfast.toolkit.cli.transport import checked_url
from holdfast.toolkit.cli.verb import LogFormat
from holdfast.worker.modules import kinds_of
from holdfast.worker.options import WorkerOptions


def run(
    modules: list[str] | None,
    *,
    url: str | None,
    queue: list[str] | None,
    concurrency: int,
    drain: bool,
    http: str | None,
    log_format: LogFormat | None,
) -> None:
    """Run jobs through the API until the worker is stopped."""
    given = program_settings(api_url=None if url is None else checked_url(url), log_format=log_format)
    begin_telemetry(given)
    options = WorkerOptions.from_settings(given, runner="remote", queues=tuple(queue or ("default",)), concurrency=concurrency)
    work_remotely(
        given, kinds_of(modules or catalog.kind_modules()), options, until_empty=drain, http=http or given.worker_http
    )
