"""What the runtime does on any API server: the same tests run against the fake and against a real one."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from holdfast import crashpoints
from holdfast.services.graphs.plan import File
from holdfast.services.graphs.runtimes.interface import RuntimeFailed, Unknown
from kube.specs import make_plan, make_spec
from kube.stage import Stage, until

NAME = "holdfast-graph-7"
EVERYTHING = {"pods": True, "services": True, "secrets": True}
NOTHING = {"pods": False, "services": False, "secrets": False}


# reach


async def test_the_graph_server_of_a_start_is_reached_with_its_own_secret(stage: Stage):
    """As the cleaner of a run does it, without a database; a pod of another start, or one that does not run, is none."""
    runtime = stage.open()
    await runtime.ensure(make_spec())
    before = await runtime.reach(7, "s1")
    await stage.kubelet.bind(NAME)
    await stage.kubelet.run(NAME)

    found = await runtime.reach(7, "s1")

    assert before is None, "its container does not run yet"
    assert found is not None
    assert (found.secret, found.address.startswith("http://")) == (make_spec().secret, True)
    assert found.secret not in repr(found)
    assert (await runtime.reach(7, "s2"), await runtime.reach(8, "s1")) == (None, None)


# ensure


async def test_a_start_makes_a_secret_a_service_and_a_pod_that_belong_to_it(stage: Stage):
    runtime = stage.open()

    seen = await runtime.ensure(make_spec(fence_token=3))

    pod, secret = await stage.kubelet.pod(NAME), await stage.find("secrets", NAME)
    assert secret is not None
    assert (seen.instance_id, seen.start_token, seen.fence_token, seen.phase, seen.name) == (7, "s1", 3, "starting", NAME)
    assert await stage.left(NAME) == EVERYTHING
    assert pod["metadata"]["labels"]["holdfast/attempt"] == "3"
    assert pod["metadata"]["annotations"]["holdfast/owner"] == "alice@example.com"
    assert [owner["uid"] for owner in pod["metadata"]["ownerReferences"]] == [secret["metadata"]["uid"]]
    assert base64.b64decode(secret["data"]["plan.json"]).decode() == make_plan().to_json()
    assert "hidden-from-everyone" not in str(pod)


async def test_a_second_call_adopts_what_the_first_one_made(stage: Stage):
    runtime = stage.open()
    first = await runtime.ensure(make_spec(fence_token=1))
    uid = (await stage.kubelet.pod(NAME))["metadata"]["uid"]

    second = await runtime.ensure(make_spec(fence_token=2))

    assert (await stage.kubelet.pod(NAME))["metadata"]["uid"] == uid
    assert second == replace(first, fence_token=1), "the attempt that made it"


@pytest.mark.parametrize("missing", [["pods"], ["pods", "services"], ["services"]])
async def test_a_call_after_a_crash_makes_what_is_missing(stage: Stage, missing: list[str]):
    runtime = stage.open()
    await runtime.ensure(make_spec())
    for plural in missing:
        await stage.api.delete(stage.api.path(plural, NAME))

    await runtime.ensure(make_spec(fence_token=2))

    assert await stage.left(NAME) == EVERYTHING


async def test_objects_of_an_earlier_start_are_removed_first(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec(start_token="s1", fence_token=1))
    await stage.kubelet.ready(NAME)

    with pytest.raises(Unknown):
        await runtime.ensure(make_spec(start_token="s2", fence_token=2))
    with pytest.raises(Unknown):
        await runtime.ensure(make_spec(start_token="s2", fence_token=2))
    await stage.kubelet.confirm_deletion(NAME)

    async def starts() -> bool:
        try:
            return (await runtime.ensure(make_spec(start_token="s2", fence_token=2))).start_token == "s2"
        except Unknown:
            return False

    await until(starts)
    assert await stage.left(NAME) == EVERYTHING
    for plural in EVERYTHING:
        found = await stage.find(plural, NAME)
        assert found is not None
        assert found["metadata"]["labels"]["holdfast/start-token"] == "s2"


async def test_objects_of_a_later_start_are_never_touched(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec(start_token="s2", fence_token=5))
    before = await stage.kubelet.pod(NAME)

    with pytest.raises(RuntimeFailed, match="later start"):
        await runtime.ensure(make_spec(start_token="s1", fence_token=4))

    assert await stage.kubelet.pod(NAME) == before


@pytest.mark.parametrize("labels", [{}, {"app.kubernetes.io/instance": "other", "app.kubernetes.io/managed-by": "holdfast"}])
async def test_an_object_that_only_has_our_name_is_never_touched(stage: Stage, labels: dict[str, str]):
    metadata = {
        "name": NAME,
        "labels": labels | {"holdfast/instance-id": "7", "holdfast/start-token": "s1", "holdfast/attempt": "1"},
    }
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}}
    made = await stage.api.create(stage.api.path("services"), service)
    runtime = stage.open()

    with pytest.raises(RuntimeFailed, match=f"Service {NAME} exists"):
        await runtime.ensure(make_spec())
    assert await runtime.remove(7)

    found = await stage.find("services", NAME)
    assert found is not None
    assert found["metadata"]["uid"] == made["metadata"]["uid"]


async def test_a_pod_that_is_being_deleted_is_not_adopted(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())
    await stage.kubelet.ready(NAME)
    await stage.api.delete(stage.api.path("pods", NAME))

    with pytest.raises(Unknown, match="being deleted"):
        await runtime.ensure(make_spec(fence_token=2))


async def test_a_plan_that_is_too_large_for_a_secret_is_fetched_from_the_control_plane(stage: Stage):
    files = tuple(File(path=f"s3://bucket/{'x' * 200}/{number}.parquet", rows=1, bytes=1) for number in range(3000))
    spec = make_spec(plan=make_plan(files=files))
    runtime = stage.open()

    with pytest.raises(RuntimeFailed, match="callback URL"):
        await runtime.ensure(spec)
    await runtime.ensure(replace(spec, callback_url="http://control-plane/api/instances/7"))

    secret, pod = await stage.find("secrets", NAME), await stage.kubelet.pod(NAME)
    assert secret is not None
    assert list(secret["data"]) == ["secret"]
    values = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    assert values["HOLDFAST_GRAPH_PLAN_URL"] == "http://control-plane/api/instances/7/plan"
    assert "HOLDFAST_GRAPH_PLAN" not in values


async def test_a_namespace_that_does_not_exist_is_named_with_the_fix(stage: Stage):
    runtime = stage.open(namespace="nowhere")

    # The user of the real server may not even ask in another namespace; both answers name the fix.
    with pytest.raises((RuntimeFailed, Unknown), match="HOLDFAST_KUBERNETES_NAMESPACE|role of docs/howto"):
        await runtime.ensure(make_spec())


async def test_an_ingress_is_made_and_removed_with_the_rest(stage: Stage):
    runtime = stage.open(route="ingress", domain="graphs.example.com", ingress_class="nginx")

    await runtime.ensure(make_spec())

    group = "networking.k8s.io"
    ingress = await stage.find("ingresses", NAME, group)
    assert ingress is not None
    assert ingress["spec"]["rules"][0]["host"] == f"{NAME}.graphs.example.com"
    assert await until(lambda: runtime.remove(7))
    assert await stage.names("ingresses", group) == []


# observe and look


async def test_a_pod_is_starting_until_it_is_ready_and_then_running(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())

    phases = []
    for step in (stage.kubelet.bind, stage.kubelet.run, stage.kubelet.ready):
        await step(NAME)
        (seen,) = await runtime.observe()
        phases.append((seen.phase, seen.address))

    assert phases == [("starting", None), ("starting", "http://127.0.0.1:8000"), ("running", "http://127.0.0.1:8000")]
    assert seen.memory_limit_mb == 2048


@pytest.mark.parametrize(
    ("end", "reason", "oom", "said"),
    [
        (("end", 137, "OOMKilled"), "OOM_KILLED", True, "2048 MiB"),
        (("end", 1), "UNEXPECTED_TERMINATION", False, "exit code 1"),
        (("end", 0, "Completed"), "UNEXPECTED_TERMINATION", False, "exit code 0"),
        (("end", 128, "StartError", "no such file"), "STARTUP_FAILED", False, "no such file"),
        (("end", 1, "Error", '{"code": "DATA_LOAD_ERROR", "message": "rows differ"}'), "DATA_LOAD_ERROR", False, "rows differ"),
        (("evict",), "UNEXPECTED_TERMINATION", False, "Evicted"),
    ],
)
async def test_why_a_pod_ended_becomes_an_error_code(stage: Stage, end: tuple, reason: str, oom: bool, said: str):
    runtime = stage.open()
    await runtime.ensure(make_spec())
    await stage.kubelet.ready(NAME)

    step, *arguments = end
    await getattr(stage.kubelet, step)(NAME, *arguments)

    (seen,) = await runtime.observe()
    assert (seen.phase, seen.reason, seen.oom) == ("failed", reason, oom)
    assert said in (seen.message or "")


async def test_an_image_that_cannot_be_pulled_fails_the_start(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())

    await stage.kubelet.wait(NAME, "ImagePullBackOff", "Back-off pulling image")

    (seen,) = await runtime.observe()
    assert (seen.phase, seen.reason) == ("failed", "STARTUP_FAILED")
    assert "Back-off pulling image" in (seen.message or "")


async def test_a_pod_that_no_node_takes_fails_after_a_while(stage: Stage):
    patient, hasty = stage.open(), stage.open(unschedulable_seconds=60)
    await patient.ensure(make_spec())

    await stage.kubelet.unschedulable(NAME, since="2026-01-01T00:00:00Z")
    (late,) = await hasty.observe()
    await stage.kubelet.unschedulable(NAME)
    (early,) = await patient.observe()

    assert (late.phase, late.reason, early.phase) == ("failed", "STARTUP_FAILED", "starting")
    assert "0/3 nodes are available" in (early.message or "")


async def test_parts_without_a_pod_are_seen(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())
    await stage.api.delete(stage.api.path("pods", NAME))

    (seen,) = await runtime.observe()

    assert (seen.instance_id, seen.start_token, seen.phase, seen.reason) == (7, "s1", "failed", "UNEXPECTED_TERMINATION")
    assert "Secret, Service" in (seen.message or "")
    assert await runtime.look(7) == seen


async def test_everything_of_this_installation_is_seen_over_several_pages_and_nothing_else(stage: Stage):
    runtime, other = stage.open(page_size=2), stage.open(installation="other")
    for number in range(1, 6):
        await runtime.ensure(make_spec(number))
    await other.ensure(make_spec(9))

    assert sorted(seen.instance_id for seen in await runtime.observe()) == [1, 2, 3, 4, 5]
    assert [seen.instance_id for seen in await other.observe()] == [9]


async def test_a_look_sees_changes_through_the_watch(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())

    async def phase_is(wanted: str) -> bool:
        seen = await runtime.look(7)
        return seen is not None and seen.phase == wanted

    assert await phase_is("starting")
    await stage.kubelet.ready(NAME)
    await until(lambda: phase_is("running"))
    await stage.kubelet.end(NAME, 137, "OOMKilled")
    await until(lambda: phase_is("failed"))
    assert await until(lambda: runtime.remove(7))
    assert await runtime.look(7) is None


# resize


async def test_limits_are_changed_in_place(stage: Stage):
    runtime, spec = stage.open(), make_spec()
    await runtime.ensure(spec)
    before = await stage.kubelet.ready(NAME)

    enacting = EnactsResizes(stage)
    done = await enacting.while_running(runtime.resize(spec, memory_mb=3072, cpu=2.0))

    (seen,) = await runtime.observe()
    after = await stage.kubelet.pod(NAME)
    assert (done, seen.memory_limit_mb, seen.phase) == (True, 3072, "running")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert await runtime.resize(spec, memory_mb=3072, cpu=2.0), "the second call finds it done"


async def test_limits_that_no_node_can_give_are_taken_back(stage: Stage):
    runtime, spec = stage.open(), make_spec()
    await runtime.ensure(spec)
    await stage.kubelet.ready(NAME)

    done = await EnactsResizes(stage, feasible=False).while_running(runtime.resize(spec, memory_mb=30720, cpu=2.0))

    pod = await stage.kubelet.pod(NAME)
    assert not done
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] in ("2Gi", "2048Mi")


async def test_a_resize_that_the_node_defers_is_unknown(stage: Stage):
    runtime, spec = stage.open(resize_seconds=0.5), make_spec()
    await runtime.ensure(spec)
    await stage.kubelet.ready(NAME)

    with pytest.raises(Unknown, match="has not resized it"):
        await runtime.resize(spec, memory_mb=3072, cpu=2.0)


async def test_a_node_that_cannot_resize_needs_a_restart(stage: Stage):
    runtime, spec = stage.open(), make_spec()
    await runtime.ensure(spec)
    await stage.kubelet.ready(NAME, resources=False)

    assert not await runtime.resize(spec, memory_mb=3072, cpu=2.0)


async def test_a_pod_of_another_start_is_not_resized(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec(start_token="s2", fence_token=2))
    before = await stage.kubelet.ready(NAME)

    assert not await runtime.resize(make_spec(start_token="s1"), memory_mb=3072, cpu=2.0)
    assert not await runtime.resize(make_spec(8), memory_mb=3072, cpu=2.0), "there is no such pod"

    assert (await stage.kubelet.pod(NAME))["metadata"]["generation"] == before["metadata"]["generation"]


# remove


async def test_removal_is_confirmed_when_nothing_is_left(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())
    await runtime.ensure(make_spec(8))
    await stage.kubelet.ready(NAME)

    assert not await runtime.remove(7), "the kubelet has not confirmed"
    (seen,) = [each for each in await runtime.observe() if each.instance_id == 7]
    await stage.kubelet.confirm_deletion(NAME)

    assert seen.phase == "stopping"
    assert await until(lambda: runtime.remove(7))
    assert await stage.left(NAME) == NOTHING
    assert await stage.left("holdfast-graph-8") == EVERYTHING
    assert await runtime.remove(7), "there was nothing"


async def test_removal_of_one_start_leaves_a_later_one(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec(start_token="s2", fence_token=2))

    assert await runtime.remove(7, start_token="s1")

    assert await stage.left(NAME) == EVERYTHING


async def test_deleting_the_secret_deletes_everything(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())

    await stage.api.delete(stage.api.path("secrets", NAME))

    async def is_empty() -> bool:
        return await stage.left(NAME) == NOTHING

    await until(is_empty)


# crashes: the process ends between two calls; another one calls again


class Died(BaseException):
    """Instead of SIGKILL, which the scenarios use."""


@contextmanager
def dies_at(point: str) -> Iterator[None]:
    def die() -> None:
        raise Died

    crashpoints.arm(point, die)
    try:
        with pytest.raises(Died):
            yield
    finally:
        crashpoints.disarm(point)


@pytest.mark.parametrize("point", ["kubernetes.secret_created", "kubernetes.service_created", "kubernetes.pod_created"])
async def test_a_start_that_died_is_completed_or_removed(stage: Stage, point: str):
    for number, second in ((7, "ensure"), (8, "remove")):
        runtime = stage.open()
        with dies_at(point):
            await runtime.ensure(make_spec(number))
        assert [seen.instance_id for seen in await runtime.observe()] == [number], "what is left is seen"

        if second == "ensure":
            await stage.open().ensure(make_spec(number, fence_token=2))
            assert await stage.left(NAME) == EVERYTHING
            assert await until(lambda runtime=runtime: runtime.remove(7))
        else:
            assert await until(lambda runtime=runtime: runtime.remove(8))
            assert await stage.left("holdfast-graph-8") == NOTHING


async def test_a_removal_that_died_is_completed(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())
    with dies_at("kubernetes.pod_deleted"):
        await runtime.remove(7)

    assert await until(lambda: stage.open().remove(7))
    assert await stage.left(NAME) == NOTHING


async def test_a_resize_that_died_is_found_done(stage: Stage):
    runtime, spec = stage.open(), make_spec()
    await runtime.ensure(spec)
    await stage.kubelet.ready(NAME)
    with dies_at("kubernetes.resize_sent"):
        await runtime.resize(spec, memory_mb=3072, cpu=2.0)
    await stage.kubelet.enact(NAME)
    generation = (await stage.kubelet.pod(NAME))["metadata"]["generation"]

    assert await stage.open().resize(spec, memory_mb=3072, cpu=2.0)

    assert (await stage.kubelet.pod(NAME))["metadata"]["generation"] == generation, "it was not sent again"


# logs


async def test_there_is_no_log_before_the_start_and_none_without_a_pod(stage: Stage):
    runtime = stage.open()
    await runtime.ensure(make_spec())

    assert await runtime.logs(7) == ""
    assert await runtime.logs(8) == ""


class EnactsResizes:
    """A kubelet that answers a resize while the call is running."""

    def __init__(self, stage: Stage, *, feasible: bool = True) -> None:
        self.stage, self.feasible = stage, feasible

    async def while_running(self, call):
        running = asyncio.ensure_future(call)
        before = (await self.stage.kubelet.pod(NAME))["metadata"]["generation"]

        async def is_asked() -> bool:
            return running.done() or (await self.stage.kubelet.pod(NAME))["metadata"]["generation"] > before

        await until(is_asked)
        await (self.stage.kubelet.enact(NAME) if self.feasible else self.stage.kubelet.refuse_resize(NAME))
        return await running
