"""How our own programs write their logs. Called by: the command line, before anything else."""

from __future__ import annotations

import logging
import sys

from holdfast.settings import Settings
from holdfast.telemetry.log import configure


def write_logs(given: Settings, *, as_json: bool = False) -> None:
    """To standard error, as the settings say; people sit at terminals, machines do not."""
    is_for_people = given.log_format == "console" or (given.log_format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[given.log_level]
    configure(json=as_json or not is_for_people, level=level, secrets=given.secrets)
