"""What only a real API server can show: its own 429, the rules of its namespaces, and a log that comes from a kubelet."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kube_cluster import KubeCluster

from holdfast.services.graphs.runtimes.interface import Unknown
from kube.access import ApiRefused
from kube.specs import make_spec
from kube.stage import Stage, until

NAME = "holdfast-graph-7"
FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"


@asynccontextmanager
async def overloaded(stage: Stage) -> AsyncIterator[None]:
    """Priority and fairness has no seats for our user: the server answers each of its requests with 429."""
    level = {
        "type": "Limited",
        "limited": {"nominalConcurrencyShares": 0, "lendablePercent": 0, "limitResponse": {"type": "Reject"}},
    }
    level["limited"] |= {"borrowingLimitPercent": 0}
    subject = {"kind": "User", "user": {"name": "holdfast"}}
    rule = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}
    schema = {"priorityLevelConfiguration": {"name": "no-seats"}, "matchingPrecedence": 2}
    schema |= {"rules": [{"subjects": [subject], "resourceRules": [rule]}]}
    await stage.api.create(f"{FLOW}/prioritylevelconfigurations", {"metadata": {"name": "no-seats"}, "spec": level})
    await stage.api.create(f"{FLOW}/flowschemas", {"metadata": {"name": "no-seats"}, "spec": schema})
    try:
        yield
    finally:
        await stage.api.delete(f"{FLOW}/flowschemas/no-seats")
        await stage.api.delete(f"{FLOW}/prioritylevelconfigurations/no-seats")


async def test_a_server_without_seats_answers_429_and_that_is_unknown(stage: Stage):
    """S-13: with Retry-After, which we pass on; nothing is read as missing, and afterwards everything is there."""
    patient, hasty = stage.open(patience_seconds=60), [stage.open(patience_seconds=0.5) for _ in range(10)]
    await patient.ensure(make_spec())

    async def refusals() -> list[Unknown]:
        """A level without seats still lets one request pass if it is alone, so many are sent at once."""
        found = await asyncio.gather(*(runtime.observe() for runtime in hasty), return_exceptions=True)
        assert all(len(each) == 1 for each in found if isinstance(each, list)), "unknown is not empty"
        return [each for each in found if isinstance(each, Unknown)]

    async with overloaded(stage):
        unknown = (await until(refusals))[0]
        others = asyncio.ensure_future(refusals())
        seen = await patient.observe()  # sent again until there is a seat
        await others

    assert "429" in str(unknown)
    assert unknown.retry_after == 1.0
    assert [each.instance_id for each in seen] == [7]


async def test_a_pod_that_is_not_restricted_would_be_refused(stage: Stage):
    """So every pod of these tests is restricted."""
    pod = {"metadata": {"name": "free"}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}

    with pytest.raises(ApiRefused, match="violates PodSecurity"):
        await stage.api.create(stage.api.path("pods"), pod)


@asynccontextmanager
async def log_server(kube: KubeCluster, lines: list[str]) -> AsyncIterator[int]:
    """The port of a kubelet that serves logs, as the API server asks for them."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        tail = int(request.partition("tailLines=")[2].split()[0].split("&")[0])
        is_log = request.startswith("GET /containerLogs/")
        body = "".join(lines[-tail:]).encode() if is_log else b""
        writer.write(
            f"HTTP/1.1 {200 if is_log else 404} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
        )
        await writer.drain()
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(kube.folder / "pki" / "server.crt", kube.folder / "pki" / "server.key")
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_log_comes_from_the_kubelet_and_a_kubelet_that_is_away_stops_nobody(stage: Stage, kube: KubeCluster):
    runtime = stage.open()
    await runtime.ensure(make_spec())
    await stage.kubelet.ready(NAME)
    address = [{"type": "InternalIP", "address": "127.0.0.1"}]

    async with log_server(kube, ["one\n", "two\n", "three\n"]) as port:
        await stage.kubelet.register(addresses=address, daemonEndpoints={"kubeletEndpoint": {"Port": port}})

        async def is_served() -> bool:  # the API server caches the address of a node
            return await runtime.logs(7, tail=2) == "two\nthree\n"

        await until(is_served)

    assert "the log is not available" in await runtime.logs(7)
