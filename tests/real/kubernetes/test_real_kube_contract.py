"""A real API server keeps the contract that the fake is held to."""

from __future__ import annotations

from kube.contract import *  # noqa: F403
