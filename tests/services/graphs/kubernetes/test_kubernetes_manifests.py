"""Manifests are valid in several versions of Kubernetes and restricted; limits and probes are those of the documents."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

import holdfast
from holdfast.errors import UsageError
from holdfast.services.graphs.plan import File
from holdfast.services.graphs.runtimes.interface import RuntimeFailed
from holdfast.services.graphs.runtimes.kubernetes import manifests, objects, rbac
from holdfast.services.graphs.runtimes.kubernetes.options import KubernetesOptions
from holdfast.services.graphs.runtimes.kubernetes.settings import KubernetesSettings
from kube.specs import make_plan, make_spec

PLAIN = KubernetesOptions(image="registry.example.com/holdfast:1.2.3")
FULL = KubernetesOptions(
    image="registry.example.com/holdfast@sha256:" + "a" * 64,
    namespace="graphs",
    installation="team-a",
    image_pull_secrets=("pull",),
    service_account="graphs",
    node_selector={"pool": "graphs"},
    tolerations=({"key": "graphs", "operator": "Exists", "effect": "NoSchedule"},),
    environment={"AWS_REGION": "eu-west-1"},
    environment_secret="bucket-keys",
    route="ingress",
    domain="graphs.example.com",
    tls=True,
    tls_secret="wildcard",
    ingress_class="nginx",
    gateway="infra/public",
)
SPEC = make_spec(
    callback_url="http://control-plane:8080/api/instances/7", labels={"mapping-id": "5", "owner": "alice@example.com"}
)


@pytest.mark.parametrize("version", ["1.27", "1.33", "1.36"])
@pytest.mark.parametrize("options", [PLAIN, FULL], ids=["plain", "full"])
def test_manifests_are_valid(options: KubernetesOptions, version: str):
    made = [
        manifests.secret(SPEC, options),
        manifests.service(SPEC, options, "uid-1"),
        manifests.pod(SPEC, options, "uid-1"),
        manifests.ingress(SPEC, options, "uid-1"),
        rbac.role("holdfast", "graphs", "httproute"),
    ]

    for manifest in made:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_manifest_with_a_wrong_field_would_not_be_valid():
    wrong = manifests.pod(SPEC, PLAIN, "uid-1")
    wrong["spec"]["containers"][0]["resizePolicies"] = []

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.36", strict=True)


def test_a_pod_is_restricted():
    """Every line of the Pod Security Standard `restricted`, and a read-only root."""
    pod = manifests.pod(SPEC, PLAIN, "uid-1")["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} == {"emptyDir", "secret"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["restartPolicy"] == "Never"
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers", "ephemeralContainers"} & set(pod)


def test_memory_request_and_limit_are_equal_and_the_cpu_limit_is_twice_the_request():
    (container,) = manifests.pod(make_spec(memory_mb=3072, cpu=1.5), PLAIN, "uid-1")["spec"]["containers"]

    assert container["resources"] == {
        "requests": {"memory": "3072Mi", "cpu": "1500m"},
        "limits": {"memory": "3072Mi", "cpu": "3000m"},
    }
    assert {each["restartPolicy"] for each in container["resizePolicy"]} == {"NotRequired"}


def test_probes_are_those_of_the_documents():
    (container,) = manifests.pod(SPEC, PLAIN, "uid-1")["spec"]["containers"]

    def probe(name: str) -> tuple[str, int, int]:
        found = container[name]
        return found["httpGet"]["path"], found["periodSeconds"], found["failureThreshold"]

    assert probe("startupProbe") == ("/health", 5, 30)
    assert probe("readinessProbe") == ("/ready", 2, 3)
    assert probe("livenessProbe") == ("/health", 10, 3)


def test_the_same_spec_makes_the_same_objects_and_another_start_the_same_names():
    again = make_spec(start_token="s2", fence_token=9)

    assert manifests.pod(SPEC, FULL, "u") == manifests.pod(SPEC, FULL, "u")
    assert (
        manifests.pod(again, FULL, "u")["metadata"]["name"]
        == manifests.pod(SPEC, FULL, "u")["metadata"]["name"]
        == "team-a-graph-7"
    )


def test_the_service_selects_the_pod_of_its_own_start_only():
    chosen = manifests.service(SPEC, FULL, "u")["spec"]["selector"].items()

    assert chosen <= manifests.pod(SPEC, FULL, "u")["metadata"]["labels"].items()
    assert not chosen <= manifests.pod(make_spec(start_token="s2"), FULL, "u")["metadata"]["labels"].items()
    assert manifests.service(SPEC, FULL, "u")["spec"]["publishNotReadyAddresses"], "its status is asked for while it loads"


def test_a_pod_has_what_the_documents_give_it():
    """O-08, R-06: instance id, slug, wrapper type, snapshot, mapping and version, owner with e-mail, where the files are, and
    30 seconds to end after a deletion."""
    spec = make_spec(owner="alice@example.com", labels={"mapping-id": "5", "mapping-version": "2", "snapshot-id": "3"})

    pod = manifests.pod(spec, PLAIN, "uid")
    plan = json.loads(base64.b64decode(manifests.secret(spec, PLAIN)["data"]["plan.json"]))

    metadata = pod["metadata"]
    assert {key: metadata["labels"][f"holdfast/{key}"] for key in ("instance-id", "engine")} == {
        "instance-id": str(spec.instance_id),
        "engine": spec.engine,
    }
    assert [metadata["labels"][f"holdfast/{key}"] for key in ("mapping-id", "mapping-version", "snapshot-id")] == [
        "5",
        "2",
        "3",
    ]
    assert metadata["name"] == objects.object_name(PLAIN.installation, spec.instance_id), "the slug: one name for all objects"
    assert metadata["annotations"]["holdfast/owner"] == "alice@example.com"
    assert metadata["annotations"]["holdfast/location"] == spec.plan.location
    assert pod["spec"]["terminationGracePeriodSeconds"] == 30
    given = ("instance_id", "engine", "snapshot_id", "mapping_id", "mapping_version", "location")
    assert {name: plan[name] for name in given} == {name: getattr(spec.plan, name) for name in given}
    names = {one["name"]: one for one in pod["spec"]["containers"][0]["env"]}
    assert names["HOLDFAST_GRAPH_POD_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_the_secret_is_in_the_secret_alone():
    for made in (manifests.pod(SPEC, FULL, "u"), manifests.service(SPEC, FULL, "u"), manifests.ingress(SPEC, FULL, "u")):
        assert SPEC.secret not in str(made)


def test_reports_over_http_are_allowed_only_by_the_setting():
    def value(options: KubernetesOptions) -> str:
        variables = manifests.pod(SPEC, options, "u")["spec"]["containers"][0]["env"]
        return next(each["value"] for each in variables if each["name"] == "HOLDFAST_PLAIN_HTTP")

    assert (value(PLAIN), value(replace(PLAIN, plain_http=True))) == ("false", "true")


def test_disk_grows_with_the_snapshot():
    big = make_spec(plan=make_plan(files=(File(path="/a.parquet", rows=1, bytes=20 * 2**30),)))

    assert manifests.disk_mb(SPEC) == 10 * 1024
    assert manifests.disk_mb(big) == 29 * 1024


def test_an_http_route_names_its_gateway():
    route = manifests.http_route(SPEC, FULL, "u")["spec"]

    assert route["parentRefs"] == [{"name": "public", "namespace": "infra"}]
    assert route["hostnames"] == ["team-a-graph-7.graphs.example.com"]


@pytest.mark.parametrize(
    ("how", "ip", "expected"),
    [
        ("service", None, "http://team-a-graph-7.graphs.svc.cluster.local:8000"),
        ("pod", "10.0.0.7", "http://10.0.0.7:8000"),
        ("pod", "fd00::7", "http://[fd00::7]:8000"),
        ("pod", None, None),
        ("route", None, "https://team-a-graph-7.graphs.example.com"),
    ],
)
def test_addresses(how: str, ip: str | None, expected: str | None):
    assert manifests.address(replace(FULL, address=how), 7, ip) == expected


@pytest.mark.parametrize("token", ["", "has space", "-begins", "x" * 64, "ü"])
def test_a_start_token_that_is_no_label_is_refused(token: str):
    with pytest.raises(RuntimeFailed, match="is no label value"):
        objects.labels("holdfast", make_spec(start_token=token, plan=make_plan()))


@pytest.mark.parametrize(
    ("text", "expected"), [("alice@example.com", "alice-example.com"), ("-a-", "a"), ("x" * 70, "x" * 63), ("ü", "")]
)
def test_other_texts_become_label_values(text: str, expected: str):
    assert objects.label_value(text) == expected
    assert objects.LABEL_VALUE.match(objects.label_value(text))


def test_the_how_to_has_the_permissions_that_the_code_has():
    page = (Path(holdfast.__file__).parents[2] / "docs/howto/graphs-on-kubernetes.md").read_text()
    (role,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)

    assert yaml.safe_load(role)["rules"] == [*rbac.rules(), rbac.rules("ingress")[-1], rbac.rules("httproute")[-1]]


# settings


def test_settings_become_options():
    given = KubernetesSettings(
        kubernetes_image="registry.example.com:5000/holdfast:1.2.3",
        kubernetes_namespace="graphs",
        kubernetes_image_pull_secrets="a, b",
        kubernetes_node_selector={"pool": "graphs"},
    )

    options = given.kubernetes_options()

    assert (options.image, options.namespace, options.image_pull_secrets) == (given.kubernetes_image, "graphs", ("a", "b"))


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({}, "set HOLDFAST_KUBERNETES_IMAGE"),
        ({"kubernetes_image": "registry.example.com:5000/holdfast"}, "add a tag other than latest"),
        ({"kubernetes_image": "holdfast:latest"}, "add a tag other than latest"),
        ({"kubernetes_image": "h:1", "kubernetes_route": "ingress"}, "needs HOLDFAST_KUBERNETES_DOMAIN"),
        (
            {"kubernetes_image": "h:1", "kubernetes_route": "httproute", "kubernetes_domain": "a.b"},
            "needs HOLDFAST_KUBERNETES_GATEWAY",
        ),
        ({"kubernetes_image": "h:1", "kubernetes_address": "route"}, "needs HOLDFAST_KUBERNETES_ROUTE"),
    ],
)
def test_settings_that_contradict_each_other_name_the_fix(given: dict[str, str], fix: str):
    with pytest.raises(UsageError, match=fix):
        KubernetesSettings(**given).kubernetes_options()
