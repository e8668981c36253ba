"""A running instance whose row is deleted by hand: what is left of it in the cluster is an orphan."""

from __future__ import annotations

from typing import Any

from graph_factories import a_pass, running_instance
from holdfast.services.graphs.figures import read as read_metrics
from holdfast.services.graphs.setup import Graphs
from kube.node import Node
from kube.scenarios import pod_of
from kube.stage import Stage


async def test_the_pod_of_a_row_that_was_deleted_is_removed_by_the_second_pass(
    conn: Any, database: str, mapping_id: int, stage: Stage, node: Node, here: Graphs
) -> None:
    """Z-02, R-02: with a real database and a fake API server; the metrics say that one was detected and removed."""
    instance_id = await running_instance(conn, database, mapping_id)
    await conn.execute("DELETE FROM holdfast.graph_instances WHERE id = %s", [instance_id])

    await a_pass(conn, database, "reconciliation")
    assert await stage.find("pods", pod_of(instance_id)) is not None, "one pass is not enough"
    await a_pass(conn, database, "reconciliation")

    assert await stage.left(pod_of(instance_id)) == {"pods": False, "services": False, "secrets": False}
    found = {one.name: one.samples[0].value for one in await read_metrics(conn)}
    assert (found["orphaned_pods_detected"], found["orphaned_pods_cleaned"]) == (1, 1)
    assert (found["orphaned_pods_detected_current"], found["orphaned_pods_cleanup_failures"]) == (0, 0)
