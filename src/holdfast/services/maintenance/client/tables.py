"""Iceberg tables: their health, their maintenance, policies and savings, as objects with cards for notebooks."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.services.maintenance.client.policy_file import checked, read_policies
from holdfast.toolkit.client.api import Api
from holdfast.toolkit.client.card import card
from holdfast.toolkit.client.jobs import Job, Jobs
from holdfast.toolkit.client.problems import JobFailed
from holdfast.toolkit.client.progress import Line, ProgressView, progress_display
from holdfast.toolkit.client.records import record
from holdfast.toolkit.client.waiting import wait

Action = str | Mapping[str, Any]
ENDED = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the cache has it. `parts` and `would_help` are those of its health score; a list has none."""

    catalog: str
    database: str
    name: str
    health: int | None
    label: str
    reasons: list[str]
    data_files: int | None
    data_bytes: int | None
    average_file_bytes: int | None
    delete_files: int | None
    snapshots: int | None
    manifests: int | None
    records: int | None
    measured_at: datetime | None
    error: str | None
    last_maintenance_job_id: int | None
    last_maintenance_state: str | None
    last_maintenance_at: datetime | None
    running_job_id: int | None
    parts: list[dict[str, Any]] | None
    would_help: list[str] | None
    _tables: Tables = field(repr=False, compare=False)

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"

    def refresh(self) -> Table:
        """The table as it is in the cache now."""
        return self._tables.get(self.full_name, catalog=self.catalog)

    def maintain(self, *actions: Action, **options: Any) -> Run:
        """Enqueue maintenance of this table; options as in `hf.tables.maintain`."""
        return self._tables.maintain(self.full_name, *actions, catalog=self.catalog, **options)

    def history(self, *, most: int | None = 20) -> list[Run]:
        """Its maintenance runs, newest first."""
        return self._tables.history(self.full_name, catalog=self.catalog, most=most)

    def _repr_html_(self) -> str:
        return card(health_view(self))


def health_view(table: Table) -> ProgressView:
    """A table for a card: a bar for each part of its score. Pure."""
    lines = [
        Line(part["name"], "running", 1 - part["lost"] / part["weight"], part["improvement"] or part["says"])
        for part in table.parts or ()
    ]
    score = "not measured" if table.health is None else f"health {table.health} of 100"
    return ProgressView(table.full_name, score, lines, ", ".join(table.reasons))


@dataclass(frozen=True, slots=True)
class Run:
    """One maintenance run: the state of its job, and the result of each action."""

    job_id: int
    table: str
    engine: str
    dry_run: bool
    state: str
    outcome: str  # the state, or partial
    error: str | None
    requested_by: str
    policy: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: float | None
    message: str | None
    actions: list[dict[str, Any]]
    saved: dict[str, Any] | None
    _tables: Tables = field(repr=False, compare=False)

    @property
    def is_ended(self) -> bool:
        """Whether it has completed, failed or was cancelled."""
        return self.state in ENDED

    @property
    def job(self) -> Job:
        """Its job, for logs, history and retries."""
        return self._tables.jobs.get(self.job_id)

    def refresh(self) -> Run:
        """The run as it is now."""
        return self._tables.run(self.job_id)

    def wait(self, *, timeout: float | None = 3600, show: bool = True, on_progress: Callable[[Run], None] | None = None) -> Run:
        """The run when it has completed; `JobFailed` if it failed or was cancelled."""
        return self._tables.wait(self, timeout=timeout, show=show, on_progress=on_progress)

    def cancel(self, *, reason: str | None = None) -> Run:
        """Cancel it: between two actions, or inside one."""
        self._tables.jobs.cancel(self.job_id, reason=reason)
        return self.refresh()

    def _repr_html_(self) -> str:
        return card(run_view(self))


def run_view(run: Run) -> ProgressView:
    """A run for a progress display: a line for each action. Pure."""
    lines = [Line(one["action"], one["status"], None, note_of(one)) for one in run.actions]
    return ProgressView(f"{run.table}: job {run.job_id}", run.outcome, lines, run.error or run.message or "")


def note_of(action: Mapping[str, Any]) -> str:
    """The figures of an action in a few words. Pure."""
    if action["error"]:
        return str(action["error"])
    before, after = action["before"], action["after"]
    if not before or not after:
        return ""
    names = {"data_files": "files", "delete_files": "delete files", "manifests": "manifests", "snapshots": "snapshots"}
    return ", ".join(f"{before[n]:,} → {after[n]:,} {word}" for n, word in names.items() if before[n] != after[n])


class Tables:
    """`hf.tables`. A table is named as `database.name`; the catalog is the first configured one unless it is given."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.jobs = Jobs(api)

    def list(
        self,
        *,
        catalog: str | None = None,
        database: str | None = None,
        search: str | None = None,
        health_below: int | None = None,
        most: int | None = 50,
    ) -> builtins.list[Table]:
        """Tables by name, at most `most` (None: all)."""
        filters = {"catalog": catalog, "database": database, "search": search, "health_below": health_below}
        return [self._table(row, {}) for row in self._api.listed("/api/tables", most=most, **filters)]

    def get(self, table: str, *, catalog: str | None = None) -> Table:
        """One table, with the parts of its health score; `NotFound` if its catalog does not have it either."""
        found = self._api.get(address_of(table), catalog=catalog)
        return self._table(found["table"], found)

    def maintain(
        self,
        table: str,
        *actions: Action,
        catalog: str | None = None,
        engine: str | None = None,
        dry_run: bool = False,
        queue: bool = False,
        reason: str | None = None,
    ) -> Run:
        """Enqueue maintenance. An action is a name, or a name with parameters: `{"expire_snapshots": {"older_than": "7d"}}`.

        `queue`: if another job has the table, wait for it instead of `Conflict`.
        """
        body = {"actions": list(actions), "engine": engine, "dry_run": dry_run, "wait": queue, "reason": reason}
        query = "" if catalog is None else f"?catalog={catalog}"
        sent = {name: value for name, value in body.items() if value is not None}
        return self._run(self._api.act("POST", f"{address_of(table)}/maintenance{query}", sent)["run"])

    def run(self, job: int) -> Run:
        """One maintenance run by the id of its job."""
        return self._run(self._api.get(f"/api/maintenance-runs/{job}"))

    def history(self, table: str, *, catalog: str | None = None, most: int | None = 20) -> builtins.list[Run]:
        """The maintenance runs of a table, newest first."""
        rows = self._api.listed(f"{address_of(table)}/maintenance", most=most, catalog=catalog)
        return [self._run(row) for row in rows]

    def wait(
        self,
        run: Run | int,
        *,
        timeout: float | None = 3600,
        show: bool = True,
        on_progress: Callable[[Run], None] | None = None,
    ) -> Run:
        """The run when it has completed; `JobFailed` if it failed or was cancelled, `TimeoutError` if it takes too long."""
        number = run if isinstance(run, int) else run.job_id
        found = wait(
            lambda: self.run(number),
            lambda current: current.is_ended,
            timeout=timeout,
            display=progress_display(run_view, show=show),
            describe=lambda current: f"maintenance job {current.job_id} is {current.state}",
            on_progress=on_progress,
        )
        if found.state != "completed":
            raise JobFailed(self.jobs.get(number))
        return found

    def savings(self, *, since: datetime | None = None, catalog: str | None = None) -> builtins.list[dict[str, Any]]:
        """What maintenance saved and cost in each month, newest first."""
        begin = None if since is None else since.isoformat()
        found: list[dict[str, Any]] = self._api.get("/api/savings", since=begin, catalog=catalog)
        return found

    # ---- policies ------------------------------------------------------------------------------------------------------

    def policies(self) -> builtins.list[dict[str, Any]]:
        """All policies by name."""
        return self._api.listed("/api/maintenance-policies")

    def preview(self, policy: Mapping[str, Any] | str) -> dict[str, Any]:
        """What a policy (its definition, or the name of a stored one) would do: tables, and the next five runs."""
        if isinstance(policy, str):
            stored: dict[str, Any] = self._api.get(f"/api/maintenance-policies/{policy}/preview")
            return stored
        found: dict[str, Any] = self._api.act("POST", "/api/maintenance-policies/preview", dict(policy))
        return found

    def apply(self, source: str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> builtins.list[dict[str, Any]]:
        """Create or replace policies, from a YAML file or from definitions; `Invalid` lists all mistakes."""
        if isinstance(source, (str, Path)):
            given = read_policies(source)
        else:
            given = checked([dict(source)] if isinstance(source, Mapping) else [dict(one) for one in source], "the list")
        for one in given:  # all are checked before the first is stored
            self.preview(one)
        return [self._api.act("PUT", f"/api/maintenance-policies/{one['name']}", one)["policy"] for one in given]

    def delete_policy(self, name: str) -> None:
        """Delete a policy. Jobs that it has enqueued continue."""
        self._api.act("DELETE", f"/api/maintenance-policies/{name}")

    def _table(self, row: Mapping[str, Any], more: Mapping[str, Any]) -> Table:
        whole = {**row, "parts": more.get("parts"), "would_help": more.get("would_help")}
        return record(Table, whole, _tables=self)

    def _run(self, row: Mapping[str, Any]) -> Run:
        return record(Run, row, _tables=self)


def address_of(table: str) -> str:
    """The path of a table in the API. Pure."""
    database, _, name = table.rpartition(".")
    if not database or not name or "/" in table:
        raise UsageError(f"{table!r} is not a table; use database.name, as in sales.orders")
    return f"/api/tables/{database}/{name}"
