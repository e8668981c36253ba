"""The settings of graphs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from holdfast.intervals import SHORTEST_INTERVAL, interval_of
from holdfast.services.graphs.runtimes.kubernetes.settings import KubernetesSettings
from holdfast.settings import settings_as


class GraphsSettings(KubernetesSettings):
    """What can be set for graphs."""

    INTERVAL_PRESETS: ClassVar[dict[str, dict[str, float]]] = {
        "conservative": {"reconciliation": 600.0, "instance_lifecycle": 600.0},
        "aggressive": {"reconciliation": 60.0, "instance_lifecycle": 300.0},
    }

    graph_runtime: Literal["local", "kubernetes"] = Field(
        default="local",
        description="Where graph servers run: `local` as child processes on the machine of the workers, `kubernetes` as pods.",
    )
    graph_engine: str = Field(
        default="ladybug", pattern=r"^[a-z][a-z0-9_]{0,49}$", description="Graph database of instances that name none."
    )
    graphs_dir: Path = Field(
        default=Path(".holdfast-graphs"),
        description="Folder of the runtime `local`: databases and logs of its graph servers. The control plane, the workers "
        "and the scheduler must use the same one.",
    )
    graph_default_memory_mb: int = Field(
        default=2048,
        ge=256,
        description="Memory limit of an instance that names none and whose snapshot needs no more, in MiB.",
    )
    graph_start_seconds: float = Field(
        default=1800.0, gt=0, description="How long a graph server may load before its instance fails with STARTUP_FAILED."
    )
    graph_delete_seconds: float = Field(
        default=30.0, ge=0, description="How long DELETE of an instance waits until it is gone; then it answers 202."
    )
    graph_report_url: str | None = Field(
        default=None,
        description="Address of the control plane that graph servers report to, such as http://control-plane:8080. Without it "
        "only queries through the control plane count as activity.",
    )
    graph_min_age_seconds: float = Field(
        default=60.0, ge=0, description="Age below which the loop `reconciliation` leaves a graph server or an instance alone."
    )
    graph_sizing: bool = Field(
        default=True, description="Whether the loop `resource_monitor` gives instances more memory when they need it."
    )
    reconciliation_job_interval_seconds: float | None = interval_of("reconciliation", SHORTEST_INTERVAL)
    instance_lifecycle_job_interval_seconds: float | None = interval_of("instance_lifecycle", SHORTEST_INTERVAL)
    instance_orchestration_job_interval_seconds: float | None = interval_of("instance_orchestration")
    resource_monitor_job_interval_seconds: float | None = interval_of("resource_monitor")


def graphs_settings() -> GraphsSettings:
    """The settings of this process."""
    return settings_as(GraphsSettings)
