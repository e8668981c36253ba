"""The crash points, under the name that the worker and its users know them by. See `holdfast/crashpoints.py`."""

from __future__ import annotations

from holdfast.crashpoints import POINTS, arm, arm_from_settings, crashpoint, dies_inside, disarm, from_settings, is_armed

__all__ = ["POINTS", "arm", "arm_from_settings", "crashpoint", "dies_inside", "disarm", "from_settings", "is_armed"]
