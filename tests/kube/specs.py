"""Specs of instances for tests."""

from __future__ import annotations

from typing import Any

from holdfast.services.graphs.plan import Column, File, LoadPlan, NodeTable
from holdfast.services.graphs.runtimes.interface import InstanceSpec


def make_plan(instance_id: int = 7, start_token: str = "s1", files: tuple[File, ...] = ()) -> LoadPlan:
    person = NodeTable(
        label="Person", primary_key=Column(name="id", type="INT64"), files=files, rows=sum(file.rows for file in files)
    )
    return LoadPlan(
        instance_id=instance_id,
        start_token=start_token,
        engine="ladybug",
        mapping_id=1,
        mapping_version=2,
        snapshot_id=3,
        location="/snapshots/3",
        nodes=(person,),
    )


def make_spec(instance_id: int = 7, start_token: str = "s1", fence_token: int = 1, **more: Any) -> InstanceSpec:
    usual: dict[str, Any] = {
        "owner": "alice@example.com",
        "engine": "ladybug",
        "memory_mb": 2048,
        "cpu": 1.0,
        "plan": make_plan(instance_id, start_token),
        "secret": "hidden-from-everyone",
    }
    return InstanceSpec(instance_id=instance_id, start_token=start_token, fence_token=fence_token, **{**usual, **more})
