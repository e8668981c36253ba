"""The workloads, one file each: what is done, and what exactly the clock covers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.scene import Scene
from benchmarks.workloads.chain import chain
from benchmarks.workloads.depth import blocked, depth
from benchmarks.workloads.drain import drain
from benchmarks.workloads.enqueue import enqueue
from benchmarks.workloads.held_xmin import held_xmin
from benchmarks.workloads.idle import idle
from benchmarks.workloads.pickup import pickup

Workload = Callable[[Scene], Awaitable[None]]

WORKLOADS: dict[str, Workload] = {
    "drain": drain,
    "enqueue": enqueue,
    "pickup": pickup,
    "chain": chain,
    "depth": depth,
    "blocked": blocked,
    "idle": idle,
    "xmin": held_xmin,
}
