"""A periodic kind whose due time a test moves. In a module of its own: workers publish every kind that they import."""

from __future__ import annotations

from datetime import timedelta

from proof.processes.handlers import PATIENT

from holdfast import job


@job("fault.periodic", every=timedelta(days=1000), **PATIENT)
async def periodic() -> None:
    """Does nothing."""
