"""What a worker imports to run exports: the kinds, and with them the cleaners of what they make outside."""

from __future__ import annotations

from typing import Any

from holdfast.services.exports.export.job import export
from holdfast.services.exports.export.remove import remove
from holdfast.services.exports.export.run import run
from holdfast.worker.kinds import Job

KINDS: list[Job[..., Any]] = [export, remove, run]
