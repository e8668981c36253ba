"""Graph instances on a real API server."""

from __future__ import annotations

from kube.scenarios import *  # noqa: F403
