"""An API server that is overloaded, restarts, forgets, lies or is away: nothing is ever read as "there is nothing"."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from holdfast.services.graphs.runtimes.interface import RuntimeFailed, Unknown
from holdfast.services.graphs.runtimes.kubernetes.rate import Rate
from kube.fake import FakeApi
from kube.specs import make_spec
from kube.stage import Stage, until

NAME = "holdfast-graph-7"


# S-13: calls are retried


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_a_call_that_failed_for_a_moment_is_sent_again(fake: FakeApi, stage: Stage, code: int):
    """S-13: each kind of call is sent again."""
    runtime = stage.open(patience_seconds=60)
    for method in ("POST", "GET", "DELETE"):
        fake.fail(1, code, method=method)

    await runtime.ensure(make_spec())

    assert [seen.instance_id for seen in await runtime.observe()] == [7]
    assert await until(lambda: runtime.remove(7))


async def test_retry_after_is_honoured_by_every_call_of_the_process(fake: FakeApi, stage: Stage):
    """S-13: a server that asks for a pause gets one."""
    runtime = stage.open(patience_seconds=60)
    fake.fail(1, 429, retry_after=1)

    began = time.monotonic()
    await asyncio.gather(runtime.observe(), runtime.ensure(make_spec()))

    assert time.monotonic() - began >= 1
    assert len([path for _, path in fake.calls if "/secrets" in path]) >= 2


async def test_a_server_that_wants_a_longer_pause_than_we_have_patience_is_unknown(fake: FakeApi, stage: Stage):
    runtime = stage.open()
    fake.fail(10**9, 429, retry_after=120)

    with pytest.raises(Unknown) as unknown:
        await runtime.observe()

    assert unknown.value.retry_after == 120


def test_calls_wait_for_their_turn_after_a_burst():
    """S-13: `burst` calls at once, then so many per second."""
    now = 100.0
    rate = Rate(20.0, 2, clock=lambda: now)

    waits = [round(rate.reserve(), 3) for _ in range(4)]
    now += 10
    later = [round(rate.reserve(), 3) for _ in range(3)]
    rate.pause(3.0)

    assert (waits, later, round(rate.reserve(), 3)) == ([0.0, 0.0, 0.05, 0.1], [0.0, 0.0, 0.05], 3.0)


async def test_every_call_takes_a_turn(fake: FakeApi, stage: Stage):
    """S-13: none goes around the limit."""
    runtime, turns = stage.open(), 0
    rate = runtime._cluster._rate

    async def turn() -> None:
        nonlocal turns
        turns += 1

    rate.turn = turn
    before = len(fake.calls)
    await runtime.ensure(make_spec())
    await runtime.observe()
    await runtime.logs(7)
    await _connected(runtime)
    await runtime.look(8)
    await runtime.remove(7)

    assert turns == len(fake.calls) - before > 10


# never "there is nothing"


async def test_a_list_that_fails_is_unknown_and_not_empty(fake: FakeApi, stage: Stage):
    """R-10: neither does a deletion take what it cannot list for gone."""
    runtime = stage.open(patience_seconds=0.2)
    await runtime.ensure(make_spec())

    for path in ("/pods", "/services", "/secrets"):
        fake.fail(10**9, 503, match=path)
        with pytest.raises(Unknown):
            await runtime.observe()
        with pytest.raises(Unknown):
            await runtime.look(8)
        with pytest.raises(Unknown):
            await runtime.remove(7)
        fake.heal()


@pytest.mark.parametrize("code", [401, 403])
async def test_lost_permissions_are_unknown_and_not_empty(fake: FakeApi, stage: Stage, code: int):
    runtime = stage.open(patience_seconds=0.2)
    await runtime.ensure(make_spec())
    fake.fail(10**9, code, method="GET")

    for call in (runtime.observe(), runtime.look(7), runtime.remove(7), runtime.logs(7)):
        with pytest.raises(Unknown):
            await call


async def test_an_answer_that_no_api_server_gives_is_unknown(fake: FakeApi, stage: Stage):
    runtime = stage.open(patience_seconds=0.2)
    await runtime.ensure(make_spec())

    for answer in (PlainTextResponse("<html>login</html>"), JSONResponse({"items": [{"metadata": 3}]}), JSONResponse([])):
        fake.answer("/pods", answer)
        with pytest.raises(Unknown):
            await runtime.observe()
        with pytest.raises(Unknown):
            await runtime.look(7)
        fake.heal()


async def test_a_list_that_breaks_off_between_pages_is_unknown(fake: FakeApi, stage: Stage):
    runtime = stage.open(page_size=2, patience_seconds=0.2)
    for number in range(1, 6):
        await runtime.ensure(make_spec(number))

    fake.fail(10**9, 503, match="continue=")
    with pytest.raises(Unknown):
        await runtime.observe()

    fake.heal()
    assert len(await runtime.observe()) == 5


async def test_a_continue_token_that_expires_begins_the_list_again(fake: FakeApi, stage: Stage):
    runtime = stage.open(page_size=2)
    for number in range(1, 6):
        await runtime.ensure(make_spec(number))
    fake.fail(1, 410, match="continue=")

    assert sorted(seen.instance_id for seen in await runtime.observe()) == [1, 2, 3, 4, 5]

    fake.fail(10**9, 410, match="continue=")
    with pytest.raises(Unknown, match="expired 3 times"):
        await runtime.observe()


async def test_a_server_that_is_away_is_unknown_and_everything_is_there_afterwards(fake: FakeApi, stage: Stage):
    runtime = stage.open(patience_seconds=0.3)
    await runtime.ensure(make_spec())
    await stage.kubelet.ready(NAME)
    assert (await runtime.look(7)).phase == "running"

    with fake.outage():
        for call in (runtime.observe(), runtime.look(8), runtime.remove(7), runtime.ensure(make_spec(8))):
            with pytest.raises(Unknown):
                await call

    (seen,) = await runtime.observe()
    assert seen.phase == "running"


async def test_a_connection_that_is_refused_is_unknown(stage: Stage, fake: FakeApi):
    import dataclasses
    import socket

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = dataclasses.replace(
            stage.user, url=f"http://127.0.0.1:{unused.getsockname()[1]}", kubeconfig=stage.user.kubeconfig.with_name("nobody")
        )
        nobody.write_kubeconfig()
        runtime = stage.open(kubeconfig=nobody.kubeconfig, patience_seconds=0.2)

        with pytest.raises(Unknown, match="does not answer"):
            await runtime.observe()


async def test_a_pod_that_is_made_while_everything_is_listed_is_not_seen_as_missing(fake: FakeApi, stage: Stage):
    """R-01: the objects of this installation are listed by label, parts before pods: a pod is made after its parts."""
    runtime, other = stage.open(), stage.open()
    answer, listed = fake._respond, []

    async def made_in_between(request):
        kind = request.url.path.rpartition("/")[2]
        if request.method == "GET" and kind in ("pods", "secrets", "services") and "watch" not in request.query_params:
            listed.append((kind, request.query_params.get("labelSelector", "")))
            if len(listed) == 2:
                await other.ensure(make_spec())
        return await answer(request)

    fake._respond = made_in_between

    assert [seen.phase for seen in await runtime.observe()] == ["starting"]
    assert {kind for kind, _ in listed} == {"pods", "secrets", "services"}
    assert [one for one in listed if "app.kubernetes.io/instance=holdfast" not in one[1].split(",")] == []


# refused


@pytest.mark.parametrize("code", [401, 403])
async def test_a_call_that_is_denied_is_unknown_because_it_may_be_allowed_in_a_moment(fake: FakeApi, stage: Stage, code: int):
    """An API server that has just started has not read its roles yet."""
    runtime, spec = stage.open(), make_spec()
    await runtime.ensure(spec)
    await stage.kubelet.ready(NAME)
    denial = 'pods is forbidden: User "holdfast" cannot patch resource "pods/resize" in API group "" in the namespace "graphs"'
    fake.fail(10**9, code, message=denial)

    for call in (runtime.ensure(make_spec(8)), runtime.resize(spec, memory_mb=3072, cpu=1.0), runtime.remove(7)):
        with pytest.raises(Unknown, match="role of docs/howto"):
            await call


async def test_a_quota_is_a_refusal_with_its_message(fake: FakeApi, stage: Stage):
    fake.quota = "exceeded quota: compute, requested: memory=2Gi, used: memory=15Gi, limited: memory=16Gi"
    runtime = stage.open()

    with pytest.raises(RuntimeFailed, match="exceeded quota: compute") as failed:
        await runtime.ensure(make_spec())

    assert failed.value.reason == "STARTUP_FAILED"
    assert await until(lambda: runtime.remove(7)), "what was made before the refusal is removed"


async def test_a_created_object_whose_answer_was_lost_is_adopted(fake: FakeApi, stage: Stage):
    """The object is created, the answer is a 503: the next try finds its own object."""
    runtime = stage.open()
    create = fake._create
    lost = {"pods", "secrets"}

    def create_and_lose(target, body):
        made = create(target, body)
        if target.plural in lost:
            lost.remove(target.plural)
            fake.fail(0, 503)
            from kube.fake import Problem

            raise Problem(503, "ServiceUnavailable", "etcdserver: request timed out")
        return made

    fake._create = create_and_lose

    seen = await runtime.ensure(make_spec())

    assert seen.start_token == "s1"
    assert await stage.names("pods") == [NAME]
    assert not lost


# watch


async def test_a_watch_that_is_gone_lists_again(fake: FakeApi, stage: Stage):
    """410: changes were missed, so everything is listed again."""
    runtime = stage.open()
    await runtime.ensure(make_spec())
    await _connected(runtime)
    lists = runtime._watch.lists

    fake.fail(10**9, 503, match="watch=true")  # nothing can be seen while the history is forgotten
    fake.cut_watches()
    await until(lambda: _is(not runtime._watch.is_connected))
    await stage.kubelet.ready(NAME)
    fake.store.compact()
    fake.heal()

    await until(lambda: _is(runtime._watch.lists > lists))
    await until(lambda: _watched_phase(runtime, "running"))


async def test_a_watch_that_the_server_ends_goes_on_without_a_list(fake: FakeApi, stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())
    await _connected(runtime)
    lists, calls = runtime._watch.lists, len(fake.calls)

    fake.cut_watches()
    await until(lambda: _is(len(fake.calls) > calls))
    await stage.kubelet.ready(NAME)

    await until(lambda: _watched_phase(runtime, "running"))
    assert runtime._watch.lists == lists


async def test_a_compacted_watch_begins_again_with_a_list(fake: FakeApi, stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())
    await _connected(runtime)
    lists = runtime._watch.lists

    fake.store.compact()
    fake.cut_watches()

    await until(lambda: _is(runtime._watch.lists > lists))
    await stage.kubelet.ready(NAME)
    await until(lambda: _watched_phase(runtime, "running"))


async def test_bookmarks_move_the_version_on(fake: FakeApi, stage: Stage, monkeypatch: pytest.MonkeyPatch):
    """A bookmark of a pod is no pod: its containers are null."""
    monkeypatch.setattr("holdfast.services.graphs.runtimes.kubernetes.cluster.WATCH_SECONDS", 1)
    runtime = stage.open()
    await runtime.ensure(make_spec())
    await _connected(runtime)
    first = int(runtime._watch._version)
    for number in range(3):  # changes of other objects
        await stage.api.create(stage.api.path("secrets"), {"metadata": {"name": f"s{number}"}})

    await until(lambda: _is(int(runtime._watch._version) >= first + 3))

    assert runtime._watch.lists == 1


async def test_a_look_through_the_watch_costs_no_call(fake: FakeApi, stage: Stage):
    runtime = stage.open()
    for number in range(1, 4):
        await runtime.ensure(make_spec(number))
    await _connected(runtime)
    calls = len(fake.calls)

    for _ in range(10):
        for number in range(1, 4):
            assert (await runtime.look(number)).phase == "starting"

    assert len(fake.calls) == calls


async def test_that_there_is_nothing_is_asked_of_the_server_itself(fake: FakeApi, stage: Stage):
    """Another process may have created the pod a moment ago."""
    runtime, other = stage.open(), stage.open()
    await _connected(runtime)
    fake.fail(10**9, 503, match="watch=true")
    fake.cut_watches()
    await other.ensure(make_spec())

    seen = await runtime.look(7)

    assert seen is not None
    assert seen.start_token == "s1"


async def test_an_older_version_of_a_pod_changes_nothing(fake: FakeApi, stage: Stage):
    """The answer of a call and the watch arrive in any order."""
    runtime = stage.open()
    await runtime.ensure(make_spec())
    old = await runtime._get_pod(7)
    await stage.kubelet.ready(NAME)
    await runtime._get_pod(7)

    runtime._watch.note(old)

    assert runtime._watch._pods[7].state.phase == "running"


async def test_memory_comes_from_the_metrics_api_if_there_is_one(fake: FakeApi, stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())

    (without,) = await runtime.observe()
    fake.usage = {NAME: "1536Ki"}
    (used,) = await runtime.observe()
    fake.fail(10**9, 503, match="metrics.k8s.io")
    (away,) = await runtime.observe()

    assert (without.memory_bytes, used.memory_bytes, away.memory_bytes) == (None, 1536 * 1024, None)


async def test_an_http_route_is_made_and_removed_with_the_rest(fake: FakeApi, stage: Stage):
    runtime = stage.open(route="httproute", domain="graphs.example.com", gateway="infra/public", address="route", tls=True)

    seen = await runtime.ensure(make_spec())

    group = "gateway.networking.k8s.io"
    assert seen.address == f"https://{NAME}.graphs.example.com"
    assert await stage.names("httproutes", group) == [NAME]
    assert await until(lambda: runtime.remove(7))
    assert await stage.names("httproutes", group) == []


async def test_the_last_lines_of_a_log_are_read(fake: FakeApi, stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())
    await stage.kubelet.ready(NAME)
    fake.logs[NAME] = "one\ntwo\nthree\n"

    assert await runtime.logs(7, tail=2) == "two\nthree\n"

    fake.fail(1, 500, match="/log", message="dial tcp 10.0.0.9:10250: connect: no route to host")
    assert "no route to host" in await runtime.logs(7)


# removal


async def test_a_pod_of_a_lost_node_is_deleted_by_force(fake: FakeApi, stage: Stage):
    runtime = stage.open(force_delete_seconds=300)
    await runtime.ensure(make_spec())
    await stage.kubelet.ready(NAME)
    assert not await runtime.remove(7)
    fake.store.shift = timedelta(seconds=200)
    assert not await runtime.remove(7), "its node may still confirm"

    fake.store.shift = timedelta(seconds=3600)

    await until(lambda: runtime.remove(7))
    assert await stage.names("pods") == []


async def test_an_object_that_took_the_name_while_we_deleted_stays(fake: FakeApi, stage: Stage):
    """Deletion names the uid."""
    runtime = stage.open()
    await runtime.ensure(make_spec(start_token="s1", fence_token=1))
    respond = fake._delete

    def replaced(target, item, body):
        if target.plural == "pods":
            fake.store.remove("pods", item)
            labels = {**item["metadata"]["labels"], "holdfast/start-token": "s2"}
            new = fake.store.add("pods", target.namespace, item | {"metadata": {"name": NAME, "labels": labels}})
            return respond(target, new, body)
        return respond(target, item, body)

    fake._delete = replaced
    await runtime.remove(7, start_token="s1")

    assert await stage.names("pods") == [NAME]
    assert (await stage.kubelet.pod(NAME))["metadata"]["labels"]["holdfast/start-token"] == "s2"


async def _connected(runtime) -> None:
    runtime._watch.look(7)
    await until(lambda: _is(runtime._watch.is_connected))


async def _watched_phase(runtime, phase: str) -> bool:
    found = runtime._watch.look(7)
    return found is not None and found.state.phase == phase


async def _is(value: bool) -> bool:
    return value
