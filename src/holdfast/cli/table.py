"""The table of commands: those of the kernel, and those of the services from the catalog.

A command is named by its module and imported when it is used, so that `holdfast --help` starts fast.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from holdfast import catalog

INSPECT, CONTROL, RUN = "Inspect and act", "Control", "Run and set up"


class Entry(NamedTuple):
    """One command: its panel in the help, its module (with `:attribute` if its Typer is not `app`), and its purpose."""

    panel: str
    place: str
    purpose: str


KERNEL: dict[str, Entry] = {
    "status": Entry(INSPECT, "holdfast.cli.status", "Show the state of the system on one screen."),
    "doctor": Entry(INSPECT, "holdfast.cli.doctor", "Check the installation and suggest fixes."),
    "job": Entry(INSPECT, "holdfast.cli.job", "Jobs: list, show, explain, enqueue, wait, retry, cancel, recover."),
    "failure": Entry(INSPECT, "holdfast.cli.failure", "Failed jobs, grouped by their error."),
    "pipeline": Entry(INSPECT, "holdfast.cli.pipeline", "Pipelines: jobs that depend on each other."),
    "lock": Entry(INSPECT, "holdfast.cli.lock", "Locks: holders, waiting jobs, release."),
    "kind": Entry(INSPECT, "holdfast.cli.kind", "Kinds of jobs: their options and their workers."),
    "periodic": Entry(INSPECT, "holdfast.cli.periodic", "Periodic jobs and loops: list, run now, pause, resume."),
    "audit": Entry(INSPECT, "holdfast.cli.audit", "The audit log: who did what, when and why."),
    "drain": Entry(CONTROL, "holdfast.cli.control:drain", "Refuse new jobs; jobs already queued still run."),
    "undrain": Entry(CONTROL, "holdfast.cli.control:undrain", "Accept new jobs again."),
    "pause": Entry(CONTROL, "holdfast.cli.control:pause", "Start no more jobs of a kind; running jobs continue."),
    "resume": Entry(CONTROL, "holdfast.cli.control:resume", "Undo pause and drain of a kind."),
    "up": Entry(RUN, "holdfast.cli.up", "Start everything on this machine and run the demos."),
    "serve": Entry(RUN, "holdfast.cli.serve", "Serve the HTTP API, its event streams and metrics."),
    "worker": Entry(RUN, "holdfast.cli.workers", "Run jobs; list workers and make them quiet."),
    "scheduler": Entry(RUN, "holdfast.cli.scheduler", "Run periodic loops."),
    "db": Entry(RUN, "holdfast.cli.db", "The database: address, schema, migrations."),
    "auth": Entry(RUN, "holdfast.cli.auth", "Log in, and manage API tokens."),
    "completion": Entry(RUN, "holdfast.cli.completion", "Install shell completion."),
    "config": Entry(RUN, "holdfast.cli.config", "Settings of this process, and values that can change at run time."),
}
PLURALS = frozenset({"job", "failure", "pipeline", "lock", "worker", "kind"})
PANELS = {"inspect": INSPECT, "operate": CONTROL, "run": RUN}  # as services name them


@cache
def commands() -> dict[str, Entry]:
    """Every command, panel by panel: first the kernel's, then those of the services."""
    found = dict(KERNEL)
    for service, command in catalog.commands():
        found[command.name] = Entry(PANELS[command.panel], f"{service.place}.{command.target}", command.purpose)
    order = list(PANELS.values())
    return dict(sorted(found.items(), key=lambda item: order.index(item[1].panel)))


@cache
def plurals() -> dict[str, str]:
    """Plurals that are accepted in place of a name."""
    return {f"{name}s": name for name in PLURALS} | {
        command.plural: command.name for _, command in catalog.commands() if command.plural
    }
