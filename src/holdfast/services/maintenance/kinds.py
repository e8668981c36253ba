"""What a worker imports to run maintenance: the kind, and with it the cleaner of remote work."""

from __future__ import annotations

from typing import Any

from holdfast.services.maintenance.run.job import run
from holdfast.services.maintenance.service import SERVICE
from holdfast.services.registration import declared_kinds
from holdfast.worker.kinds import Job

KINDS: list[Job[..., Any]] = declared_kinds(SERVICE, [run])
