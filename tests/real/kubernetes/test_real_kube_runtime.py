"""The runtime `kubernetes` on a real API server, with the permissions of the how-to and nothing more."""

from __future__ import annotations

from kube.cases import *  # noqa: F403
