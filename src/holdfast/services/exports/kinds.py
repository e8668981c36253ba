"""What a worker imports to run exports: the kinds, and with them the cleaners of their effects."""

from __future__ import annotations

from typing import Any

from holdfast.services.exports.export.job import export
from holdfast.services.exports.export.run import run
from holdfast.services.exports.service import SERVICE
from holdfast.services.exports.snapshots.remove import remove
from holdfast.services.registration import declared_kinds
from holdfast.worker.kinds import Job

KINDS: list[Job[..., Any]] = declared_kinds(SERVICE, [export, remove, run])
