"""What a worker imports to run exports."""

from __future__ import annotations

from typing import Any

from holdfast.services.exports.export.run import run
from holdfast.worker.kinds import Job

KINDS: list[Job[..., Any]] = [run]
