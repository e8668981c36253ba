"""What our own programs say about themselves, and how. Called by: the command line, before anything else."""

from __future__ import annotations

import logging
import sys

from holdfast.settings import Settings
from holdfast.telemetry.log import configure
from holdfast.telemetry.trace import export_to


def begin_telemetry(given: Settings, *, as_json: bool = False) -> None:
    """Logs to standard error, as the settings say: people sit at terminals, machines do not. Traces where they are wanted."""
    is_for_people = given.log_format == "console" or (given.log_format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[given.log_level]
    configure(json=as_json or not is_for_people, level=level, secrets=given.secrets)
    export_to(given.traces)
