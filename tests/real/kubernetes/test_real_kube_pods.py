"""Real graph servers as pods of a real API server."""

from __future__ import annotations

from kube.pods import *  # noqa: F403
