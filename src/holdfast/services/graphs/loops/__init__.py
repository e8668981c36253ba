"""The periodic loops of graphs. Each observes, decides with a pure function, and acts in one transaction per item.

reconciliation.py   compares what the runtime has with what the database says     drift.py    its decisions
orchestration.py    moves instances that no job moves                             lifecycle.py deletes expired instances
monitor.py          gives instances more memory                                   growth.py   its decisions

Importing this module also registers the cleaner of graph servers.
"""

from __future__ import annotations

from datetime import timedelta

from holdfast.schedule.registry import Loop
from holdfast.services.graphs import kinds
from holdfast.services.graphs.loops import lifecycle, monitor, orchestration, reconciliation
from holdfast.services.graphs.settings import GraphsSettings

assert kinds.KINDS  # their cleaner is called by the loop `effects`


def loops(settings: GraphsSettings) -> list[Loop]:
    """The loops. `apps/scheduler.py` applies the intervals of the settings."""
    return [
        Loop(
            "reconciliation",
            reconciliation.reconcile,
            every=timedelta(seconds=300),
            description="Compares graph servers with instances: removes orphans, fails instances whose server is gone.",
        ),
        Loop(
            "instance_lifecycle",
            lifecycle.enforce,
            every=timedelta(seconds=300),
            description="Deletes graph instances whose TTL or inactivity timeout is over.",
        ),
        Loop(
            "instance_orchestration",
            orchestration.orchestrate,
            every=timedelta(seconds=30),
            is_quiet=True,
            description="Moves graph instances on that no job moves.",
        ),
        Loop(
            "resource_monitor",
            monitor.monitor,
            every=timedelta(seconds=60),
            is_quiet=True,
            description="Samples the memory of graph servers, and gives more to those that need it.",
        ),
    ]
