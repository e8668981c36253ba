"""Open the runtime that the settings name. Called by: `setup.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.services.graphs.runtimes.interface import Runtime
from holdfast.services.graphs.runtimes.kubernetes import open_kubernetes
from holdfast.services.graphs.runtimes.local.runtime import LocalRuntime

if TYPE_CHECKING:
    from holdfast.services.graphs.settings import GraphsSettings


def open_runtime(settings: GraphsSettings) -> Runtime:
    """The runtime of this process. Nothing is started and nothing is asked yet."""
    if settings.graph_runtime == "kubernetes":
        return open_kubernetes(settings.kubernetes_options())
    return LocalRuntime(settings.graphs_dir)
