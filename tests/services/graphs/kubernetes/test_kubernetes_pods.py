"""Real graph servers as pods of the fake API server."""

from __future__ import annotations

from kube.pods import *  # noqa: F403
