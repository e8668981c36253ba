"""What a worker imports to run graphs: the kinds, and with them the cleaners of graph servers and runs."""

from __future__ import annotations

from typing import Any

from holdfast.services.graphs.instances.algorithm import run_algorithm
from holdfast.services.graphs.instances.remove import remove
from holdfast.services.graphs.instances.resize import resize
from holdfast.services.graphs.instances.start import start
from holdfast.services.graphs.service import SERVICE
from holdfast.services.registration import declared_kinds
from holdfast.worker.kinds import Job

KINDS: list[Job[..., Any]] = declared_kinds(SERVICE, [start, resize, remove, run_algorithm])
