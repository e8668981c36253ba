"""The runtime `kubernetes` against a fake API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

pytest.register_assert_rewrite("kube.contract", "kube.cases", "kube.scenarios", "kube.pods")

from kube import fixtures  # noqa: E402 - after the assertions are rewritten
from kube.fake import FakeApi, serving_fake  # noqa: E402
from kube.stage import Stage, staged  # noqa: E402


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[FakeApi, Stage]]:
    async with serving_fake(tmp_path) as (fake, access):

        async def compact() -> None:
            fake.store.compact()

        async with staged(access, access, compact) as stage:
            yield fake, stage


@pytest.fixture
def fake(served: tuple[FakeApi, Stage]) -> FakeApi:
    return served[0]


@pytest.fixture
def stage(served: tuple[FakeApi, Stage]) -> Stage:
    return served[1]


runtime, node, process_node, dying_worker = fixtures.runtime, fixtures.node, fixtures.process_node, fixtures.dying_worker


@pytest.fixture
def undeletable(fake: FakeApi) -> Callable[..., AbstractAsyncContextManager[None]]:
    """Names of pods whose deletion the server refuses."""

    @asynccontextmanager
    async def refusing(*names: str) -> AsyncIterator[None]:
        for name in names:
            fake.fail(10**9, 403, match=f"/pods/{name}", method="DELETE")
        yield
        fake.heal()

    return refusing


@pytest.fixture
def outage(fake: FakeApi) -> Callable[[], AbstractAsyncContextManager[None]]:
    """The API server is away for the length of the block."""

    @asynccontextmanager
    async def away() -> AsyncIterator[None]:
        with fake.outage():
            yield

    return away


@pytest.fixture
def outage_seconds() -> float:
    """As short as three passes of each loop."""
    return 0.0
