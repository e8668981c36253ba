"""What `holdfast doctor` checks for graphs, on the machine where it runs: the engine, the folder, and the runtime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

from holdfast.distribution import install_hint
from holdfast.errors import UsageError
from holdfast.services.graphs.settings import GraphsSettings
from holdfast.toolkit.cli.finding import Finding, Level, ok


def checks(settings: GraphsSettings) -> Iterator[Finding]:
    """One finding for each thing that the configured runtime needs."""
    if settings.graph_runtime == "kubernetes":
        yield _kubernetes(settings)
        return
    yield _engine(settings.graph_engine)
    yield _folder(settings)


def _engine(engine: str) -> Finding:
    if find_spec(engine) is None:
        return Finding("graph engine", Level.WARNING, f"{engine} is not installed; no graph can start", install_hint("graphs"))
    return ok("graph engine", f"{engine} is installed")


def _folder(settings: GraphsSettings) -> Finding:
    """Whether the folder of the runtime `local` can be written, or created."""
    folder = settings.graphs_dir.expanduser().absolute()
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        fix = f"make {existing} writable, or set HOLDFAST_GRAPHS_DIR"
        return Finding("graph folder", Level.ERROR, f"{folder} cannot be written", fix)
    return ok("graph folder", f"{folder} can be written")


def _kubernetes(settings: GraphsSettings) -> Finding:
    try:
        options = settings.kubernetes_options()
    except UsageError as error:
        return Finding("graph runtime", Level.ERROR, str(error), "fix the setting; no graph can start")
    return ok("graph runtime", f"pods of {options.image} in the namespace {options.namespace}")
