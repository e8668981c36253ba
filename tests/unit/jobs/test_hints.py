"""Hints are shared, and none is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.jobs import client
from holdfast.jobs.client import Client


class Pool:
    """Says what was told, and lets the test do something meanwhile."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []
        self.meanwhile: Any = None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Pool]:
        yield self

    async def execute(self, _: str, parameters: dict[str, list[str]]) -> None:
        self.told.append(parameters["queues"])
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            await asyncio.sleep(0)


async def test_hint_added_while_another_is_sent_is_sent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "HINT_EVERY", 0)
    pool: Any = Pool()
    some = Client(pool)
    pool.meanwhile = lambda: some._hint_later("second")

    some._hint_later("first")
    await some.settle()

    assert pool.told == [["first"], ["second"]]
