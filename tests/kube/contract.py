"""What any API server does that the runtime relies on. The fake and a real one are both held to it."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from holdfast.services.graphs.runtimes.kubernetes import manifests
from kube.access import ApiRefused
from kube.specs import make_spec
from kube.stage import Stage, until

BURSTABLE = manifests.resources(3072, 2.0)


def secret(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "data": {"a": "YQ=="}}


async def pod_on_node(stage: Stage, number: int = 7) -> str:
    """The name of a pod of ours that runs on the node."""
    spec = make_spec(number)
    owner = await stage.api.create(stage.api.path("secrets"), manifests.secret(spec, stage.options()))
    made = await stage.api.create(stage.api.path("pods"), manifests.pod(spec, stage.options(), owner["metadata"]["uid"]))
    await stage.kubelet.ready(made["metadata"]["name"])
    return str(made["metadata"]["name"])


def aged(token: str) -> str:
    """The same token of a version that is forgotten."""
    return base64.urlsafe_b64encode(
        json.dumps(json.loads(base64.urlsafe_b64decode(token + "==")) | {"rv": 2}).encode()
    ).decode()


async def test_a_taken_name_is_answered_with_409(stage: Stage):
    await stage.api.create(stage.api.path("secrets"), secret("one"))

    with pytest.raises(ApiRefused) as refused:
        await stage.api.create(stage.api.path("secrets"), secret("one"))

    assert (refused.value.code, refused.value.status["reason"]) == (409, "AlreadyExists")


async def test_an_invalid_object_is_answered_with_422(stage: Stage):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "none"}, "spec": {}}

    with pytest.raises(ApiRefused) as refused:
        await stage.api.create(stage.api.path("pods"), pod)

    assert (refused.value.code, refused.value.status["reason"]) == (422, "Invalid")


async def test_a_namespace_that_does_not_exist_is_answered_with_404(stage: Stage):
    with pytest.raises(ApiRefused) as refused:
        await stage.api.create("/api/v1/namespaces/nowhere/secrets", secret("one"))

    assert (refused.value.code, refused.value.status["reason"]) == (404, "NotFound")


async def test_every_change_has_a_larger_version(stage: Stage):
    made = await stage.api.create(stage.api.path("secrets"), secret("one"))
    changed = await stage.api.merge(stage.api.path("secrets", "one"), {"metadata": {"labels": {"b": "c"}}})

    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]


async def test_pages_are_of_one_moment_and_a_compacted_token_is_gone(stage: Stage):
    for number in range(5):
        await stage.api.create(stage.api.path("secrets"), secret(f"s{number}", page="yes"))
    query = {"labelSelector": "page=yes", "limit": "2"}

    first = await stage.api.get(stage.api.path("secrets"), **query)
    await stage.api.delete(stage.api.path("secrets", "s4"))
    second = await stage.api.get(stage.api.path("secrets"), **query, **{"continue": first["metadata"]["continue"]})
    third = await stage.api.get(stage.api.path("secrets"), **query, **{"continue": second["metadata"]["continue"]})
    await stage.compact()
    with pytest.raises(ApiRefused) as refused:
        await stage.api.get(stage.api.path("secrets"), **query, **{"continue": aged(first["metadata"]["continue"])})

    names = [item["metadata"]["name"] for page in (first, second, third) for item in page["items"]]
    assert names == ["s0", "s1", "s2", "s3", "s4"], "s4 was there when the first page was read"
    assert not third["metadata"].get("continue")
    assert (refused.value.code, refused.value.status["reason"]) == (410, "Expired")


async def test_a_list_can_be_of_metadata_alone(stage: Stage):
    await stage.api.create(stage.api.path("secrets"), secret("one", only="meta"))
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"}

    path = stage.api.path("secrets")
    found = (await stage.api.http.get(path, params={"labelSelector": "only=meta"}, headers=accept)).json()

    assert found["kind"] == "PartialObjectMetadataList"
    assert [(item["metadata"]["name"], "data" in item) for item in found["items"]] == [("one", False)]


async def test_a_list_of_the_metadata_of_nothing_has_no_array(stage: Stage):
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"}

    found = (await stage.api.http.get(stage.api.path("secrets"), params={"labelSelector": "no=such"}, headers=accept)).json()

    assert found["items"] is None
    assert found["metadata"]["resourceVersion"]
    assert (await stage.api.get(stage.api.path("secrets"), labelSelector="no=such"))["items"] == []


async def test_a_watch_goes_on_from_the_version_of_a_list(stage: Stage):
    version = (await stage.api.get(stage.api.path("secrets")))["metadata"]["resourceVersion"]
    await stage.api.create(stage.api.path("secrets"), secret("one", watched="yes"))
    await stage.api.create(stage.api.path("secrets"), secret("other"))
    await stage.api.merge(stage.api.path("secrets", "one"), {"metadata": {"labels": {"b": "c"}}})
    await stage.api.delete(stage.api.path("secrets", "one"))

    seen = []
    messages = stage.api.watch(stage.api.path("secrets"), resourceVersion=version, labelSelector="watched=yes")
    async with asyncio.timeout(60):
        async for message in messages:
            seen.append((message["type"], message["object"]["metadata"]["name"]))
            if message["type"] == "DELETED":
                break
    await messages.aclose()

    assert seen == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]


async def test_a_watch_of_a_version_that_is_too_old_says_410(stage: Stage):
    await stage.compact()

    messages = stage.api.watch(stage.api.path("pods"), resourceVersion="2", allowWatchBookmarks="true", timeoutSeconds="5")
    first = await anext(messages)
    await messages.aclose()

    assert (first["type"], first["object"]["code"], first["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_a_bookmark_is_no_complete_object(stage: Stage):
    version = (await stage.api.get(stage.api.path("pods")))["metadata"]["resourceVersion"]

    query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(stage.bookmark_seconds)}
    seen = [message async for message in stage.api.watch(stage.api.path("pods"), **query)]

    assert {message["type"] for message in seen} == {"BOOKMARK"}
    found = seen[-1]["object"]
    assert int(found["metadata"]["resourceVersion"]) >= int(version)
    assert (found["kind"], found["spec"]) == ("Pod", {"containers": None})


async def test_delete_of_another_uid_is_refused(stage: Stage):
    await stage.api.create(stage.api.path("secrets"), secret("one"))
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "1-2-3"}}

    with pytest.raises(ApiRefused) as refused:
        await stage.api.delete(stage.api.path("secrets", "one"), options)

    assert (refused.value.code, refused.value.status["reason"]) == (409, "Conflict")


async def test_a_pod_without_a_node_is_deleted_at_once_and_one_on_a_node_when_its_kubelet_says_so(stage: Stage):
    spec = make_spec(8)
    await stage.api.create(stage.api.path("pods"), manifests.pod(spec, stage.options(), "1-2-3") | {})
    await stage.api.delete(stage.api.path("pods", "holdfast-graph-8"))
    assert await stage.find("pods", "holdfast-graph-8") is None

    name = await pod_on_node(stage)
    await stage.api.delete(stage.api.path("pods", name))

    leaving = await stage.kubelet.pod(name)
    assert leaving["metadata"]["deletionGracePeriodSeconds"] == manifests.GRACE_SECONDS
    await stage.kubelet.confirm_deletion(name)
    assert await stage.find("pods", name) is None


async def test_what_an_object_owns_goes_with_it(stage: Stage):
    owner = await stage.api.create(stage.api.path("secrets"), secret("owner"))
    meta = {"ownerReferences": [{"apiVersion": "v1", "kind": "Secret", "name": "owner", "uid": owner["metadata"]["uid"]}]}
    owned = secret("owned")
    owned["metadata"] |= meta
    await stage.api.create(stage.api.path("secrets"), owned)

    await stage.api.delete(stage.api.path("secrets", "owner"))

    async def is_gone() -> bool:
        return await stage.find("secrets", "owned") is None

    await until(is_gone)


async def test_limits_change_by_the_resize_subresource_only(stage: Stage):
    name = await pod_on_node(stage)
    change = {"spec": {"containers": [{"name": "graph", "resources": BURSTABLE}]}}

    with pytest.raises(ApiRefused) as refused:
        await stage.api.strategic(stage.api.path("pods", name), change)
    resized = await stage.api.strategic(stage.api.path("pods", f"{name}/resize"), change)

    assert refused.value.code == 422
    assert resized["spec"]["containers"][0]["resources"]["limits"]["memory"] in ("3072Mi", "3Gi")
    assert resized["metadata"]["generation"] == 2
    assert resized["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_a_node_that_reports_no_resources_cannot_resize(stage: Stage):
    name = await pod_on_node(stage)
    await stage.kubelet.ready(name, resources=False)

    change = {"spec": {"containers": [{"name": "graph", "resources": BURSTABLE}]}}

    with pytest.raises(ApiRefused) as refused:
        await stage.api.strategic(stage.api.path("pods", f"{name}/resize"), change)

    assert refused.value.code == 422
    assert "without support for resize" in refused.value.status["message"]


async def test_a_resize_may_not_change_the_qos_class(stage: Stage):
    name = await pod_on_node(stage)
    guaranteed = {"requests": BURSTABLE["limits"], "limits": BURSTABLE["limits"]}
    change = {"spec": {"containers": [{"name": "graph", "resources": guaranteed}]}}

    with pytest.raises(ApiRefused) as refused:
        await stage.api.strategic(stage.api.path("pods", f"{name}/resize"), change)

    assert refused.value.code == 422


async def test_a_pod_that_no_node_has_has_no_log(stage: Stage):
    await stage.api.create(stage.api.path("pods"), manifests.pod(make_spec(9), stage.options(), "1-2-3"))

    assert await stage.api.get(stage.api.path("pods", "holdfast-graph-9/log"), container="graph") == ""


async def test_a_user_without_a_token_is_answered_with_401(stage: Stage):
    answer = await stage.api.http.get(stage.api.path("pods"), headers={"Authorization": "Bearer wrong"})

    assert answer.status_code == 401
